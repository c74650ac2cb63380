"""Bounds of a broker's memory (I15): entries published and not confirmed, and the tail cache."""

from __future__ import annotations

import gc
import tracemalloc
from time import perf_counter
from unittest.mock import Mock

import pytest

from heliograph.actors.broker.limits.publish_budget import PENDING_OVERHEAD_BYTES, PublishBudget, PublishShare
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.producers.producer import PublishRequest, TopicProducer
from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import ENTRY_OVERHEAD_BYTES, PendingPublish, TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head
from tests.unit.broker.world import entry

ENTRIES = 10_000
COUNTED_APART = 0.15  # of what Python takes, at most


def test_a_budget_wakes_waiters_once_half_is_free() -> None:
    over = PENDING_OVERHEAD_BYTES
    budget = PublishBudget(100 + 2 * over)
    one, other = PublishShare(budget), PublishShare(budget)
    woken: list[str] = []
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))
    assert not one.hold(60, 60 + over)
    assert not other.hold(40, 60 + over)
    assert not budget.is_exhausted
    assert other.hold(1, 60 + over)
    assert budget.is_exhausted
    assert (one.entries, one.bytes, other.entries, other.bytes) == (1, 60 + over, 2, 41 + 2 * over)
    budget.call_when_room(first)
    budget.call_when_room(second)
    budget.forget(second)
    other.settle(1)
    assert budget.is_exhausted
    assert woken == []
    assert one.hold(0, 10_000), "the budget is exhausted"
    one.settle(60)
    one.settle(0)
    assert not budget.is_exhausted
    assert woken == ["first"]
    assert one.hold(61, 60 + over), "more than one connection may have"
    one.settle(61)
    other.settle(40)
    assert budget.bytes == 0
    with pytest.raises(AssertionError):
        other.settle(1)


def test_the_cache_keeps_the_newest_within_its_bytes() -> None:
    cache = TailCache(10 * (ENTRY_OVERHEAD_BYTES + 100))
    for number in range(25):
        cache.put(Position(1, number), entry("x" * 100))
    assert len(cache) == 10
    assert cache.bytes <= cache.bytes_max
    assert cache.get(Position(1, 14)) is None
    assert cache.get(Position(1, 15)) is not None
    assert (cache.hits, cache.misses) == (1, 1)
    cache.put(Position(2, 0), entry("y" * cache.bytes_max))
    assert len(cache) == 0
    assert cache.bytes == 0


def received(number: int, stamp: EntryStamp) -> TopicEntry:
    """Return an entry as the broker makes it of a message that came in."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_700_000_000_000 + number)
    made = TopicEntry.read(encode_single(metadata, full_head(90, f"{number}", None, None), bytes(90)), check=False)
    stamp.stamp(made)
    return made


@pytest.mark.slow
def test_the_cache_counts_what_python_takes() -> None:  # I15
    stamp = EntryStamp(time_ms=0, latest_ms=0, next_index=None)
    gc.collect()
    tracemalloc.start()
    try:
        cache = TailCache(1 << 30)
        for number in range(ENTRIES):
            cache.put(Position(1, number), received(number, stamp))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert abs(cache.bytes / taken - 1) < COUNTED_APART


@pytest.mark.slow
def test_unconfirmed_entries_count_what_python_takes() -> None:  # I15
    stamp, producer = EntryStamp(time_ms=0, latest_ms=0, next_index=None), TopicProducer(1, "p", 0, Mock())
    share = PublishShare(PublishBudget(1 << 30))
    gc.collect()
    tracemalloc.start()
    try:
        pending: list[PendingPublish] = []
        for number in range(ENTRIES):
            made = received(number, stamp)
            size = len(made.payload)
            pending.append((made, PublishRequest(producer, number, number, 1, size), perf_counter()))
            share.hold(size, 1 << 30)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert abs(share.bytes / taken - 1) < COUNTED_APART
