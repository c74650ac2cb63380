"""A reader of planned ranges, from bookies into record batches; it runs in Ray tasks and in Spark executors.

The ledgers' ``DetachedReader``, which needs no metadata, reads on an event loop in a thread, so that the next entries
arrive while the caller decodes the ones before.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pyarrow as pa

from heliograph.actors.errors import EntryDamagedError
from heliograph.actors.ledger.driver import DetachedReader, LedgerClientConfig, LedgerEntry
from heliograph.base.backoff import Attempts, Backoff
from heliograph.base.errors import Advice, ChecksumError, HeliographError
from heliograph.base.loop_thread import LoopThread
from heliograph.pipelines.planning.conditions import PUBLISH_TIME, Where
from heliograph.pipelines.planning.patience import BATCH_SECONDS
from heliograph.pipelines.planning.ranges import BACK_ENTRIES_MAX, LedgerRange, by_partition, narrow
from heliograph.pipelines.reading.chunks import Earlier
from heliograph.pipelines.reading.columns import ALL_COLUMNS, OnUnreadable, Rows
from heliograph.pipelines.reading.counting import RowCounter, lacks_metadata
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.filtering import RowFilter
from heliograph.pipelines.reading.latest import LatestRows
from heliograph.pipelines.reading.nearby import nearby_bookies
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.protocol.entry import decode_kept
from heliograph.tracing import tracer as tracing

log = logging.getLogger(__name__)

READ_BYTES_MAX = 1 << 20  # of entries in one answer of a bookie (I15)
READ_BYTES_FULL = READ_BYTES_MAX // 8 * 7  # which a read is made for, so that few answers are cut
ENTRY_BYTES_BESIDE = 64  # of an entry in an answer beside its payload
READS_AHEAD = 2  # answers that are on their way, or wait for the caller, besides the one that it has (I15)
DAMAGED_ATTEMPTS_MAX = 6  # at an entry whose copies are all damaged: time changes nothing, but repair may be at it
BACK_STEP_ENTRIES = 16  # of one step back; chunks are as large as entries can be
PAUSE_MS = 250  # after the first failed attempt; doubles with each
PAUSE_MS_MAX = 4_000

_SETTINGS = "HELIOGRAPH_LEDGER__"  # how the names of the section's variables begin


def read_ranges(
    ranges: Sequence[LedgerRange],
    columns: Sequence[str] = ALL_COLUMNS,
    on_unreadable: OnUnreadable = "fail",
    where: Where | None = None,
    wait_seconds: float = BATCH_SECONDS,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``ranges``, in order, as record batches of bounded size; of ranges that are ``latest`` the
    latest one of each key.

    Args:
        on_unreadable: as that of ``Rows``. The number of entries that could not be read is logged.
        where: conditions on the rows; None: all rows.
        wait_seconds: how long one read is tried again while no bookie answers it, with a line in the log each time.

    Raises:
        QuorumLostError: no replica of an entry answers, in ``wait_seconds``.
        NoSuchEntryError: the topic was trimmed since the ranges were planned, or data was lost.
        EntryDamagedError: every copy of an entry is damaged.
        ProtocolError, ChecksumError, UnsupportedError: an entry cannot be read as rows; says why.
    """
    with tracing.table_span("read", ranges[0].topic if ranges else "", {"heliograph.ranges": len(ranges)}) as span:
        rows = 0
        for batch in _read(ranges, columns, on_unreadable, where, wait_seconds):
            rows += batch.num_rows
            yield batch
        span.set("heliograph.rows", rows)


def _read(
    ranges: Sequence[LedgerRange],
    columns: Sequence[str],
    on_unreadable: OnUnreadable,
    where: Where | None,
    wait_seconds: float,
) -> Iterator[pa.RecordBatch]:
    if ranges and ranges[0].latest:
        yield from _latest(ranges, columns, on_unreadable, where, wait_seconds)
        return
    if where is None:
        yield from _batches(ranges, Rows(columns, on_unreadable), None, wait_seconds)
        return
    chosen = RowFilter(where, columns)
    yield from chosen.batches(_batches(ranges, Rows(chosen.reads, on_unreadable), chosen, wait_seconds))


def _latest(
    ranges: Sequence[LedgerRange],
    columns: Sequence[str],
    on_unreadable: OnUnreadable,
    where: Where | None,
    wait_seconds: float,
) -> Iterator[pa.RecordBatch]:
    chosen = RowFilter(where, columns) if where is not None else None
    for pieces in by_partition(ranges):
        latest = LatestRows(columns if chosen is None else chosen.reads)
        for batch in _batches(pieces, Rows(latest.reads, on_unreadable), None, wait_seconds):
            latest.add(batch)
        yield from latest.batches() if chosen is None else chosen.batches(latest.batches())


def _batches(
    ranges: Sequence[LedgerRange], rows: Rows, chosen: RowFilter | None, wait_seconds: float
) -> Iterator[pa.RecordBatch]:
    for piece, ledger_id, entry_id, section, earlier in _entries(ranges, wait_seconds):
        if chosen is not None and not chosen.may_have_rows(piece.partition, ledger_id, entry_id, section):
            continue
        rows.add_entry(piece.topic, piece.partition, ledger_id, entry_id, section, earlier)
        if rows.is_full:
            yield rows.take()
    if rows.count:
        yield rows.take()
    if rows.unreadable:
        log.warning("%d entries could not be read; the last one: %s", rows.unreadable, rows.last_error)


def count_ranges(
    ranges: Sequence[LedgerRange],
    on_unreadable: OnUnreadable = "fail",
    where: Where | None = None,
    wait_seconds: float = BATCH_SECONDS,
) -> int:
    """Return how many rows ``read_ranges`` yields; errors are its own.

    Without conditions, and where unreadable entries are an error, payloads are not looked at. An entry whose checksum
    is right, but whose payload its producer damaged, is then counted by its metadata.
    """
    if where is not None or on_unreadable != "fail" or (ranges and ranges[0].latest):
        found = read_ranges(ranges, (PUBLISH_TIME,), on_unreadable, where, wait_seconds)
        return sum(batch.num_rows for batch in found)
    counter = RowCounter()
    emptied = Rows((PUBLISH_TIME,), on_unreadable)  # compaction leaves out messages of batches, as payloads tell
    kept = 0
    heads = all(not piece.compacted for piece in ranges)
    for piece, ledger_id, entry_id, section, earlier in _entries(ranges, wait_seconds, heads=heads):
        if not piece.compacted:
            if heads and lacks_metadata(section):
                ((_, (whole,)),) = _read_ahead([narrow(piece, entry_id, entry_id)], wait_seconds)
                section = whole.payload
            counter.add_entry(piece.topic, ledger_id, entry_id, section, earlier)
            continue
        emptied.add_entry(piece.topic, piece.partition, ledger_id, entry_id, section, earlier)
        if emptied.is_full:
            kept += emptied.take().num_rows
    return counter.count + kept + emptied.count


def read_table(
    ranges: Sequence[LedgerRange],
    columns: Sequence[str] = ALL_COLUMNS,
    on_unreadable: OnUnreadable = "fail",
    schemas: TopicSchemas | None = None,
    where: Where | None = None,
    wait_seconds: float = BATCH_SECONDS,
) -> Iterator[pa.RecordBatch]:
    """Yield what ``read_ranges`` does, with values decoded by ``schemas``. Errors: its own, and ``ValueDecoder``'s."""
    if schemas is None:
        yield from read_ranges(ranges, columns, on_unreadable, where, wait_seconds)
        return
    decoder = ValueDecoder(schemas, columns, on_unreadable)
    yield from decoder.decoded(read_ranges(ranges, decoder.reads, on_unreadable, where, wait_seconds))
    if decoder.unreadable:
        log.warning("%d values do not fit their schemas", decoder.unreadable)


def count_table(
    ranges: Sequence[LedgerRange],
    on_unreadable: OnUnreadable = "fail",
    schemas: TopicSchemas | None = None,
    where: Where | None = None,
    wait_seconds: float = BATCH_SECONDS,
) -> int:
    """Return how many rows ``read_table`` yields; values are decoded only where those that do not fit are left out."""
    if schemas is None or on_unreadable != "skip":
        return count_ranges(ranges, on_unreadable, where, wait_seconds)
    found = read_table(ranges, (PUBLISH_TIME,), on_unreadable, schemas, where, wait_seconds)
    return sum(batch.num_rows for batch in found)


def _entries(
    ranges: Sequence[LedgerRange], wait_seconds: float, *, heads: bool = False
) -> Iterator[tuple[LedgerRange, int, int, bytes | memoryview, Earlier]]:
    """Yield the entries of ranges: where each was published, what it is, and how those before it are read.

    Args:
        heads: entries may be cut after HEAD_BYTES.
    """
    for piece, entries in _read_ahead(ranges, wait_seconds, heads=heads):
        earlier: Earlier = partial(_read_back, piece, wait_seconds)
        for entry in entries:
            if piece.compacted:
                ledger_id, entry_id, section = decode_kept(entry.payload)
                yield piece, ledger_id, entry_id, section, partial(_read_kept_back, piece, wait_seconds, entry.entry_id)
            else:
                yield piece, piece.ledger_id, entry.entry_id, entry.payload, earlier


def _read_ahead(
    ranges: Sequence[LedgerRange], wait_seconds: float, *, heads: bool = False
) -> Iterator[tuple[LedgerRange, Sequence[LedgerEntry]]]:
    with LoopThread("range-reader") as thread:
        fetcher = thread.run(_open(ranges, wait_seconds, heads=heads))
        try:
            coming = thread.start(fetcher.next_chunk())
            while (chunk := coming.result()) is not None:
                coming = thread.start(fetcher.next_chunk())
                yield chunk
        finally:
            thread.run(fetcher.close())


def _read_back(
    piece: LedgerRange, wait_seconds: float, entry_id: int
) -> Iterator[tuple[tuple[int, int], bytes | memoryview]]:
    """Yield the entries before one of ``piece``, newest first, at most ``BACK_ENTRIES_MAX`` of each of two ledgers."""
    oldest = max(0, entry_id - BACK_ENTRIES_MAX)
    for last in range(entry_id - 1, oldest - 1, -BACK_STEP_ENTRIES):
        step = replace(piece, first_entry_id=max(oldest, last - BACK_STEP_ENTRIES + 1), last_entry_id=last)
        read = [entry for _, entries in _read_ahead([step], wait_seconds) for entry in entries]
        for entry in reversed(read):
            yield (piece.ledger_id, entry.entry_id), entry.payload
    if oldest == 0 and piece.before is not None:
        yield from _read_back(piece.before, wait_seconds, piece.before.last_entry_id + 1)


def _read_kept_back(
    piece: LedgerRange, wait_seconds: float, kept_id: int, entry_id: int
) -> Iterator[tuple[tuple[int, int], bytes | memoryview]]:
    """Yield what ``_read_back`` does, of the entries that compaction kept.

    Args:
        kept_id: the entry of the compacted ledger that keeps ``entry_id``.
    """
    for _, record in _read_back(piece, wait_seconds, kept_id):
        ledger_id, original, section = decode_kept(record)
        yield (ledger_id, original), section


async def _open(ranges: Sequence[LedgerRange], wait_seconds: float, *, heads: bool) -> Fetcher:
    return Fetcher(ranges, wait_seconds, heads=heads)


class Fetcher:
    """The reader of one task. It belongs to one event loop.

    Args:
        wait_seconds: how long one read is tried again.
        heads: entries may be cut after HEAD_BYTES.
    """

    def __init__(self, ranges: Sequence[LedgerRange], wait_seconds: float, *, heads: bool = False) -> None:
        self._wait_seconds = wait_seconds
        self._heads = heads
        self._addresses = {bookie: address for piece in ranges for bookie, address in piece.addresses}
        racks = {bookie: rack for piece in ranges for bookie, rack in piece.racks}
        self._nearby = nearby_bookies(self._addresses, racks)
        self._config = _ledger_config()
        self._grant, self._authority = "", ""
        self._reader = self._new_reader()
        self._chunks = self._all_chunks(ranges)
        self._turn = asyncio.Lock()

    async def next_chunk(self) -> tuple[LedgerRange, Sequence[LedgerEntry]] | None:
        """Return the next consecutive entries, or None at the end."""
        async with self._turn:
            return await anext(self._chunks, None)

    async def close(self) -> None:
        """Close all connections; a read in progress fails."""
        await self._reader.close()
        async with self._turn:
            await self._chunks.aclose()

    async def _all_chunks(
        self, ranges: Sequence[LedgerRange]
    ) -> AsyncGenerator[tuple[LedgerRange, Sequence[LedgerEntry]]]:
        for piece in ranges:
            if (piece.grant, piece.authority) != (
                self._grant,
                self._authority,
            ):
                # The connections to bookies are good for one grant.
                await self._reader.close()
                self._grant, self._authority = piece.grant, piece.authority
                self._reader = self._new_reader()
            async with aclosing(self._piece_chunks(piece)) as chunks:
                async for entries in chunks:
                    yield piece, entries

    async def _piece_chunks(self, piece: LedgerRange) -> AsyncGenerator[Sequence[LedgerEntry]]:
        """Yield the entries of a range in order.

        After the first answer, several reads are under way, each of as many entries as one answer holds by the sizes
        of those before. An answer that holds fewer is followed by the rest of its entries.
        """
        # A connection that has not been greeted yet asks for whole entries: one tells whether heads are had.
        last = piece.first_entry_id if self._heads else piece.last_entry_id
        entries = await self._read_with_retries(piece, piece.first_entry_id, last)
        yield entries
        following, count = entries[-1].entry_id + 1, _count_for(entries)
        under_way: deque[tuple[int, asyncio.Task[Sequence[LedgerEntry]]]] = deque()
        try:
            while under_way or following <= piece.last_entry_id:
                while len(under_way) < READS_AHEAD and following <= piece.last_entry_id:  # I15
                    last = min(following + count - 1, piece.last_entry_id)
                    read = self._read_with_retries(piece, following, last)
                    under_way.append((last, asyncio.create_task(read)))
                    following = last + 1
                last, task = under_way.popleft()
                entries = await task
                is_cut = entries[-1].entry_id < last
                count = len(entries) if is_cut else min(_count_for(entries), 2 * len(entries))
                yield entries
                while entries[-1].entry_id < last:
                    entries = await self._read_with_retries(piece, entries[-1].entry_id + 1, last)
                    yield entries
        finally:
            for _, task in under_way:
                task.cancel()
            await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)

    async def _read_with_retries(self, piece: LedgerRange, first: int, last: int) -> Sequence[LedgerEntry]:
        attempts = Attempts(self._wait_seconds, Backoff(PAUSE_MS, PAUSE_MS_MAX), asyncio.get_running_loop().time)
        damaged = 0
        while True:
            try:
                entries = await self._reader.read(piece.record(), first, last, READ_BYTES_MAX, heads=self._heads)
                assert entries[0].entry_id == first, "a read starts at the requested entry"
                return entries
            except HeliographError as error:
                damaged += isinstance(error, EntryDamagedError | ChecksumError)
                if error.advice is not Advice.RETRY or damaged >= DAMAGED_ATTEMPTS_MAX:
                    raise
                pause = attempts.pause_after(error)
                what = f"reading entries {first} to {last} of ledger {piece.ledger_id}"
                log.warning("%s failed, the next attempt is in %.1f s: %s", what, pause, error)
                await asyncio.sleep(pause)

    def _new_reader(self) -> DetachedReader:
        return DetachedReader(self._addresses, self._config, self._grant, self._authority, self._nearby)


def _count_for(entries: Sequence[LedgerEntry]) -> int:
    """Return how many entries of the mean size of these fill most of an answer, at least 1."""
    size = sum(len(entry.payload) + ENTRY_BYTES_BESIDE for entry in entries)
    return max(1, READ_BYTES_FULL * len(entries) // size)


def _ledger_config() -> LedgerClientConfig:
    """Return the settings of the section ``ledger``, from the environment.

    A task is started by Ray or Spark, so its environment is the only configuration that it has.
    """
    if not any(name.upper().startswith(_SETTINGS) for name in os.environ):
        return LedgerClientConfig()
    from heliograph.base.section import from_environment, from_mapping  # imports pydantic, which takes 0.1 s

    settings = from_environment(os.environ, "HELIOGRAPH_", ("ledger",)).get("ledger", {})
    config: LedgerClientConfig = from_mapping(LedgerClientConfig, settings, "ledger.")
    return config
