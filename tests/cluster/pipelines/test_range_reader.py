"""Ranges read from bookies over sockets, striped, replicated, damaged, missing and dead ones, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ray.data.expressions import col, lit

from heliograph.actors.errors import EntryDamagedError, NoSuchEntryError, QuorumLostError
from heliograph.actors.ledger.driver import DetachedReader
from heliograph.actors.wire.messages import BookieOp
from heliograph.base.errors import AlreadyClosedError, UnsupportedError
from heliograph.client.ray_release import has_pushdown
from heliograph.metadata.model import LedgerMetadata, Segment
from heliograph.pipelines.planning.ranges import LedgerRange, narrow, range_from_json, range_of
from heliograph.pipelines.ray_data.source import COUNTED, TableRead, TopicDatasource
from heliograph.pipelines.reading import nearby, range_reader
from heliograph.pipelines.reading.columns import ALL_COLUMNS
from heliograph.pipelines.reading.nearby import nearby_bookies
from heliograph.pipelines.reading.range_reader import count_ranges, read_ranges
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.pulsar_pb2 import MessageIdData
from tests.bench.process import Child
from tests.bench.tables.expanding import expanding_ledgers
from tests.cluster.support.fake_bookie import FakeBookie
from tests.cluster.support.threaded_bookies import give, threaded_bookies
from tests.unit.pipelines.reading.test_special_entries import chunks_of

LEDGER = 11
ENTRIES = 40
MESSAGES = 5  # of an entry
WITH_PUSHDOWN = pytest.mark.skipif(not has_pushdown(), reason="this Ray tells sources no columns and no rows")
NOBODY = "127.0.0.1:9"  # the discard port: nothing listens


def values_of(entry_id: int) -> list[bytes]:
    return [b"%d.%d" % (entry_id, index) for index in range(MESSAGES)]


@contextmanager
def a_ledger(
    ensemble: int, write_quorum: int, entries: int = ENTRIES, padding: int = 0
) -> Iterator[tuple[list[FakeBookie], LedgerRange]]:
    """Run bookies with a striped ledger; yield them with the range of all its entries."""
    with threaded_bookies(ensemble) as bookies:
        for entry_id in range(entries):
            payload = encode_entry_of("p", 0, 1, [value + b" " * padding for value in values_of(entry_id)])
            for step in range(write_quorum):
                give(bookies[(entry_id + step) % ensemble], LEDGER, entry_id, payload)
        names = tuple(bookie.bookie_id for bookie in bookies)
        record = LedgerMetadata(LEDGER, ensemble, write_quorum, 1, (Segment(0, names),))
        addresses = {bookie.bookie_id: bookie.address for bookie in bookies}
        yield bookies, range_of("persistent://public/default/t", -1, record, 0, entries - 1, addresses)


def read(piece: LedgerRange) -> list[bytes]:
    return [value.rstrip() for batch in read_ranges([piece], ("value",)) for value in batch.column(0).to_pylist()]


def expected(first: int = 0, last: int = ENTRIES - 1) -> list[bytes]:
    return [value for entry_id in range(first, last + 1) for value in values_of(entry_id)]


def batches_asked(bookies: list[FakeBookie]) -> int:
    return sum(request.op is BookieOp.READ_BATCH for bookie in bookies for request in bookie.requests)


@pytest.mark.parametrize(("ensemble", "write_quorum"), [(1, 1), (3, 3), (3, 2), (5, 2), (3, 1)])
def test_every_message_in_order(ensemble: int, write_quorum: int) -> None:
    with a_ledger(ensemble, write_quorum) as (_, whole):
        assert read(whole) == expected()
        assert read(replace(whole, first_entry_id=7, last_entry_id=9)) == expected(
            7, 9
        )  # I3: no entry beyond the range


def test_a_large_range_comes_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.pipelines.reading.columns.BATCH_BYTES_MAX", 64 << 10)
    with a_ledger(3, 3, padding=2048) as (_, whole):
        batches = list(read_ranges([whole]))
    assert sum(batch.num_rows for batch in batches) == ENTRIES * MESSAGES
    assert len(batches) > 3
    assert all(batch.num_rows <= (64 << 10) // 2048 + 2 * MESSAGES for batch in batches)  # I15


def test_many_messages_take_few_requests() -> None:
    with a_ledger(3, 3) as (bookies, whole):
        read(whole)
        assert batches_asked(bookies) == 1


@pytest.mark.parametrize(("ensemble", "write_quorum"), [(3, 3), (3, 1)])
def test_answers_that_are_cut_short_are_completed(
    monkeypatch: pytest.MonkeyPatch, ensemble: int, write_quorum: int
) -> None:
    """Reads are made for the mean size of the entries before, and the sizes change."""
    monkeypatch.setattr(range_reader, "READ_BYTES_MAX", 4_000)
    monkeypatch.setattr(range_reader, "READ_BYTES_FULL", 3_500)
    sizes = [1, 1, 1, 500, 3_000, 1, 9_000, 1, 1, 1] * 6
    with threaded_bookies(ensemble) as bookies:
        for entry_id, size in enumerate(sizes):
            payload = encode_entry_of("p", 0, 1, [b"%d" % entry_id + b" " * size])
            for step in range(write_quorum):
                give(bookies[(entry_id + step) % ensemble], LEDGER, entry_id, payload)
        names = tuple(bookie.bookie_id for bookie in bookies)
        record = LedgerMetadata(LEDGER, ensemble, write_quorum, 1, (Segment(0, names),))
        addresses = {bookie.bookie_id: bookie.address for bookie in bookies}
        whole = range_of("persistent://public/default/t", -1, record, 0, len(sizes) - 1, addresses)
        assert read(whole) == [b"%d" % entry_id for entry_id in range(len(sizes))]
        assert batches_asked(bookies) < len(sizes) * (ensemble // write_quorum)


def test_several_reads_are_under_way_and_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:  # I15
    monkeypatch.setattr(range_reader, "READ_BYTES_MAX", 4_000)
    monkeypatch.setattr(range_reader, "READ_BYTES_FULL", 3_500)
    under_way, most = 0, 0
    alone = DetachedReader.read

    async def counted(self: DetachedReader, *args: Any, **options: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await alone(self, *args, **options)
        finally:
            under_way -= 1

    monkeypatch.setattr(DetachedReader, "read", counted)
    with a_ledger(3, 3, padding=200) as (_, whole):
        assert read(whole) == expected()
        assert most == range_reader.READS_AHEAD
        batches = read_ranges([whole])
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert under_way == 0


def test_dead_and_unknown_bookies_and_lost_copies_are_passed_by() -> None:
    with a_ledger(3, 3) as (bookies, whole):
        del bookies[1].ledgers[LEDGER].entries[20]
        addresses = dict(whole.addresses) | {bookies[0].bookie_id: NOBODY}
        assert read(replace(whole, addresses=tuple(addresses.items()))) == expected()
        assert read(replace(whole, addresses=whole.addresses[2:])) == expected()


def test_a_damaged_copy_is_never_shown_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with a_ledger(2, 2) as (bookies, whole):
        bookies[0].damaged_entries.add(3)
        bookies[1].damaged_entries.add(8)
        assert read(whole) == expected()
    assert f"has damaged entries of ledger {LEDGER}" in caplog.text


def test_all_copies_damaged_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "DAMAGED_ATTEMPTS_MAX", 1)
    with a_ledger(2, 2) as (bookies, whole):
        for bookie in bookies:
            bookie.damaged_entries.add(3)
        with pytest.raises(EntryDamagedError, match="entry 3"):
            read(whole)


def test_a_trimmed_ledger_is_said() -> None:
    with a_ledger(2, 2) as (bookies, whole):
        for bookie in bookies:
            bookie.ledgers.clear()
        with pytest.raises(NoSuchEntryError):
            read(whole)


def test_no_bookie_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "PAUSE_MS", 10)
    with a_ledger(2, 2) as (_, whole):
        nowhere = replace(whole, addresses=tuple((name, NOBODY) for name, _ in whole.addresses))
        for piece in (nowhere, replace(whole, addresses=())):
            with pytest.raises(QuorumLostError):
                list(read_ranges([piece], wait_seconds=0.05))


def test_bookies_that_are_away_are_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    class Away(DetachedReader):
        async def read(self, *arguments: Any, **options: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts <= 12:
                raise QuorumLostError("no replica answers")
            return await super().read(*arguments, **options)

    monkeypatch.setattr(range_reader, "DetachedReader", Away)
    monkeypatch.setattr(range_reader, "PAUSE_MS", 1)
    monkeypatch.setattr(range_reader, "PAUSE_MS_MAX", 1)
    with a_ledger(2, 2) as (_, whole):
        assert read(whole) == expected()
    assert caplog.text.count(f"of ledger {LEDGER} failed, the next attempt is in") == 12


def test_a_silent_bookie_does_not_hold_up_the_read() -> None:
    with a_ledger(2, 2) as (bookies, whole):
        bookies[0].stalled_ops.add(BookieOp.READ_BATCH)
        assert read(whole) == expected()


def test_a_message_in_chunks_that_begins_before_the_range_is_read_whole() -> None:
    chunks = chunks_of(body=b"".join(b"%05d" % number for number in range(20)), count=20)
    with a_ledger(3, 2) as (bookies, whole):
        for entry_id, chunk in enumerate(chunks, 5):
            for step in range(2):
                give(bookies[(entry_id + step) % 3], LEDGER, entry_id, chunk)
        joined = b"".join(b"%05d" % number for number in range(20))
        assert read(narrow(whole, 0, 23)) == expected(0, 4)
        assert read(narrow(whole, 24, 24)) == [joined]
        assert read(narrow(whole, 7, 26)) == [joined, *expected(25, 26)]


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    with a_ledger(1, 1, padding=1 << 19, entries=12) as (_, whole):
        batches = read_ranges([whole])
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert not [thread for thread in threading.enumerate() if thread.name == "range-reader"]


def test_a_closed_reader_takes_no_other_read() -> None:
    async def close_and_read(piece: LedgerRange) -> None:
        reader = DetachedReader(dict(piece.addresses))
        await reader.close()
        await reader.close()
        with pytest.raises(AlreadyClosedError):
            await reader.read(piece.record(), 0, piece.last_entry_id)

    with a_ledger(2, 2) as (_, whole):
        asyncio.run(close_and_read(whole))


@pytest.mark.parametrize("near", range(3))
def test_copies_on_this_machine_are_read_first(near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_ledger(3, 3) as (bookies, whole):
        name = bookies[near].bookie_id
        assert nearby_bookies(dict(whole.addresses)) == (frozenset(name for name, _ in whole.addresses), frozenset())
        monkeypatch.setattr(range_reader, "nearby_bookies", lambda addresses, racks: ([name], []))
        assert read(whole) == expected()
        assert [batches_asked([bookie]) > 0 for bookie in bookies] == [place == near for place in range(3)]
        del bookies[near].ledgers[LEDGER].entries[7]
        assert read(whole) == expected()  # another one has it


@pytest.mark.parametrize("near", range(3))
def test_copies_in_this_rack_are_read_before_others(near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_ledger(3, 3) as (bookies, whole):
        monkeypatch.setattr(nearby, "_is_near", lambda host: False)
        monkeypatch.setenv("HELIOGRAPH_RACK", f"rack-{near}")
        racks = tuple((bookie.bookie_id, f"rack-{place}") for place, bookie in enumerate(bookies))
        placed = range_from_json(replace(whole, racks=racks).to_json())
        assert read(placed) == expected()
        assert [batches_asked([bookie]) > 0 for bookie in bookies] == [place == near for place in range(3)]


def tasks_of(source: TopicDatasource) -> list[pa.Table]:
    return [block for task in source.get_read_tasks(3) for block in task()]


@WITH_PUSHDOWN
def test_ray_data_prunes_columns_and_rows() -> None:
    with a_ledger(3, 2) as (_, whole):
        source = TopicDatasource([whole], TableRead(("value", "__key", "__publishTime")), task_bytes_min=1)
        assert sum(block.num_rows for block in tasks_of(source)) == len(expected())
        keys = source.apply_projection({"__key": "__key"})
        assert {tuple(block.column_names) for block in tasks_of(keys)} == {("__key",)}
        assert keys.get_projection_map() == {"__key": "__key"}
        none = source.apply_projection({})
        assert sum(block.num_rows for block in tasks_of(none)) == len(expected())
        assert {tuple(block.column_names) for block in tasks_of(none)} == {(COUNTED,)}
        assert source.get_projection_map() is None, "the source itself is as it was"
        long_ago, ahead = datetime(1970, 1, 2, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
        held = source.apply_predicate((col("__publishTime") < ahead) & (col("__publishTime") > long_ago))
        assert tasks_of(held) == []  # they were published in the first millisecond of 1970
        kept = source.apply_predicate(lit(ahead) > col("__publishTime"))
        assert sum(block.num_rows for block in tasks_of(kept)) == len(expected())
        assert sum(block.num_rows for block in tasks_of(kept.apply_projection({}))) == len(expected())


@pytest.mark.parametrize(
    "predicate",
    [
        lambda: col("value") == b"0.1",
        lambda: (col("__key") == b"k") | (col("__key") == b"l"),
        lambda: (col("__key") == b"k") & (col("value") == b"0.1"),
        lambda: col("__key") == "k",
        lambda: col("__publishTime") == 7,
        lambda: col("__key") == col("value"),
        lambda: ~(col("__key") == b"k"),
    ],
)
@WITH_PUSHDOWN
def test_a_filter_that_is_not_understood_stays_with_ray_data(predicate: Callable[[], Any]) -> None:
    with a_ledger(1, 1) as (_, whole):
        source = TopicDatasource([whole], TableRead(("value", "__key")))
        assert source.apply_predicate(predicate()) is source


def test_a_message_in_chunks_may_begin_in_the_ledger_before() -> None:
    body = b"".join(b"%05d" % number for number in range(20))
    chunks = chunks_of(body=body, count=20)
    with a_ledger(3, 2) as (bookies, whole):
        second = replace(whole, ledger_id=LEDGER + 1, last_entry_id=9, before=whole.tail())
        for place, chunk in enumerate(chunks):
            ledger_id, entry_id = (LEDGER, ENTRIES - 12 + place) if place < 12 else (LEDGER + 1, place - 12)
            for step in range(2):
                give(bookies[(entry_id + step) % 3], ledger_id, entry_id, chunk)
        for entry_id in (8, 9):
            for step in range(2):
                give(
                    bookies[(entry_id + step) % 3],
                    LEDGER + 1,
                    entry_id,
                    encode_entry_of("p", 0, 1, values_of(entry_id)),
                )
        wanted = [body, *expected(8, 9)]
        assert read(whole) == expected(0, ENTRIES - 13), "the message belongs to the task of its last chunk"
        assert read(second) == wanted
        assert read(range_from_json(second.to_json())) == wanted
        assert read(narrow(second, 5, 9)) == wanted
        assert count_ranges([second]) == len(wanted)
        (row, *_) = [row for batch in read_ranges([second], ("__messageId",)) for row in batch.to_pylist()]
        first = MessageIdData.FromString(row["__messageId"]).first_chunk_message_id
        assert (first.ledger_id, first.entry_id) == (LEDGER, ENTRIES - 12)
        with pytest.raises(UnsupportedError, match="earlier chunks"):
            read(replace(second, before=None))


MORE_MB = 48.0  # that the reader of the larger topic may hold: allocators keep what they had, and pieces of it


@pytest.mark.parametrize(
    ("small", "large"),
    [(1 << 28, 1 << 30), pytest.param(1 << 30, 20 << 30, marks=pytest.mark.full)],
    ids=["1 GiB", "20 GiB"],
)
def test_memory_is_flat_at_any_size_of_a_topic(tmp_path: Path, small: int, large: int) -> None:
    found = []
    with expanding_ledgers(tmp_path / "bookie", (small, large)) as ranges:
        for piece in ranges:
            plan = tmp_path / "ranges"
            plan.write_text(piece.to_json())
            with Child("tests.bench.tables.scan", plan, *ALL_COLUMNS) as child:
                found.append(json.loads(child.said()))
    few, many = found
    print({size: (one["pss_mb"], one["peak_mb"]) for size, one in zip((small, large), found, strict=True)})
    assert many["bytes"] >= large * 0.99
    assert many["pss_mb"] < few["pss_mb"] + MORE_MB
    assert many["peak_mb"] < few["peak_mb"] + MORE_MB
