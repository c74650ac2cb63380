"""Write cache, read cache, and the table of ledgers."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.bookie.store import read_cache
from heliograph.actors.bookie.store.index import LedgerRecord, merge_runs
from heliograph.actors.bookie.store.ledgers import DeletedLedgers, LedgerTable
from heliograph.actors.bookie.store.read_cache import ReadCache
from heliograph.actors.bookie.store.write_cache import ENTRY_OVERHEAD_BYTES, WriteCache


def test_both_halves_are_read_while_one_is_flushed() -> None:
    cache = WriteCache(10_000)
    cache.put(1, 0, b"old")
    half = cache.swap()
    cache.put(1, 1, b"new")
    assert cache.get(1, 0) == b"old"
    assert cache.get(1, 1) == b"new"
    assert list(half.sorted(half.ledgers)) == [(1, [(0, b"old")])]
    assert cache.entry_ids(1) == {0, 1}
    cache.flushed()
    assert cache.get(1, 0) is None
    assert cache.entries == 1


def test_the_cache_is_bounded_and_says_when_to_flush() -> None:  # I15
    cache = WriteCache(10_000)
    number = 0
    while cache.room_bytes >= 300:
        cache.put(1, number, bytes(300))
        number += 1
    assert cache.size_bytes <= 10_000
    assert number == 10_000 // (300 + ENTRY_OVERHEAD_BYTES)
    assert cache.needs_flush
    assert cache.is_crowded
    cache.swap()
    assert cache.room_bytes < 300, "the flushing half counts until it is on disk"
    assert not cache.needs_flush
    cache.flushed()
    assert cache.room_bytes >= 300


@pytest.mark.parametrize("make", [WriteCache, ReadCache])
def test_what_is_counted_is_what_python_takes(make: type[WriteCache | ReadCache]) -> None:  # I15
    gc.collect()
    tracemalloc.start()
    try:
        cache = make(1 << 30)
        for number in range(20_000):
            cache.put(1, number, bytes(100))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.85 < cache.size_bytes / taken < 1.15


def test_a_rewritten_entry_is_counted_once() -> None:
    cache = WriteCache(10_000)
    cache.put(1, 0, bytes(100))
    cache.put(1, 0, bytes(200))
    assert cache.entries == 1
    assert cache.size_bytes == 200 + ENTRY_OVERHEAD_BYTES
    cache.swap()
    cache.put(1, 0, bytes(300))
    assert cache.size_bytes == 500 + 2 * ENTRY_OVERHEAD_BYTES
    cache.drop(1)
    assert cache.size_bytes == 200 + ENTRY_OVERHEAD_BYTES, "what is being flushed stays"
    cache.flushed()
    assert (cache.size_bytes, cache.entries) == (0, 0)


def test_with_much_room_no_flush_is_needed_and_nothing_waits_for_one() -> None:
    cache = WriteCache(10_000)
    for number in range(26):
        cache.put(1, number, bytes(250))
        is_calm = cache.room_bytes >= cache.calm_room_bytes
        assert not (is_calm and (cache.needs_flush or cache.is_left_to_clients or cache.is_crowded))
    assert cache.needs_flush
    assert cache.is_left_to_clients
    assert cache.is_crowded


def test_a_flush_goes_by_ledger_and_entry() -> None:
    cache = WriteCache(10_000)
    for ledger_id, entry_id in [(2, 1), (1, 5), (2, 0), (1, 3)]:
        cache.put(ledger_id, entry_id, b"")
    half = cache.swap()
    order = [(ledger, entry) for ledger, entries in half.sorted(half.ledgers) for entry, _ in entries]
    assert order == [(1, 3), (1, 5), (2, 0), (2, 1)]


def test_the_read_cache_drops_what_was_used_longest_ago() -> None:  # I15
    size = 100 + read_cache.ENTRY_OVERHEAD_BYTES
    cache = ReadCache(3 * size)
    for entry_id in range(3):
        cache.put(1, entry_id, bytes(100))
    assert cache.get(1, 0) is not None
    cache.put(1, 3, bytes(100))
    assert cache.get(1, 1) is None
    assert cache.get(1, 0) is not None
    assert cache.size_bytes == 3 * size
    cache.put(1, 4, bytes(4 * size))
    assert cache.get(1, 4) is None, "larger than the whole cache"


@given(st.lists(st.integers(0, 60), max_size=80))
def test_deleted_ledgers_are_a_set_of_few_spans(ids: list[int]) -> None:
    deleted = DeletedLedgers()
    for ledger_id in ids:
        deleted.add(ledger_id)
    assert [n for n in range(62) if n in deleted] == sorted(set(ids))
    spans = deleted.spans()
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(spans)), "spans neither meet nor overlap"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=30))
def test_merged_runs_hold_the_same_ids(pairs: list[tuple[int, int]]) -> None:
    spans = [(first, first + more) for first, more in pairs]
    wanted = {n for first, last in spans for n in range(first, last + 1)}
    merged = merge_runs(spans)
    assert {n for first, last in merged for n in range(first, last + 1)} == wanted
    assert sum(last - first + 1 for first, last in merged) == len(wanted)


def test_the_table_hands_changed_records_to_one_checkpoint() -> None:
    table = LedgerTable()
    table.make(3).fence.request("waiter")
    table.changed.add(3)
    assert table.take_changed() == [LedgerRecord(3, is_fenced=True)]  # I4: a fence on its way counts
    assert table.take_changed() == []


def test_a_dropped_ledger_leaves_its_fence() -> None:  # I4
    table = LedgerTable()
    table.make(3)
    table.changed.add(3)
    table.drop(3)
    assert table.get(3) is None
    assert 3 in table.deleted
    assert table.take_changed() == []
    other = LedgerTable()
    other.load([LedgerRecord(3, is_fenced=True, is_deleted=True), LedgerRecord(4, is_fenced=True, is_limbo=True)])
    assert 3 in other.deleted
    state = other.get(4)
    assert state is not None
    assert state.is_limbo
    assert not state.fence.is_clear


def test_a_lac_only_grows() -> None:  # I2
    table = LedgerTable()
    state = table.make(1)
    assert [state.raise_lac(lac) for lac in (3, 2, 3, 5)] == [True, False, False, True]
    assert state.last_add_confirmed == 5
