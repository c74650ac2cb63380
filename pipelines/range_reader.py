"""Reads planned ranges straight from bookies into record batches; runs in Ray tasks and in Spark executors.

Which replica to ask, when to ask another, and what a read may return is decided by ``actors.ledger.reader``; here are
only its sockets and its clock, on an event loop in a thread, so that the next entries arrive while the caller decodes
the ones before.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import uvloop

from actors.errors import BookieError
from actors.ledger.driver.answers import batch_of_entries
from actors.ledger.effects import Effect, Failed, LedgerEntry, ReadBatch, ReadFinished, Reply
from actors.ledger.health import BookieHealth
from actors.ledger.reader import ReadCore, check_range
from actors.wire.client import BookieClient
from actors.wire.messages import Answer, Op, Request
from heliograph.errors import Advice, HeliographError
from pipelines.columns import ALL_COLUMNS, Rows
from pipelines.ranges import LedgerRange

R = TypeVar("R")

SECRET_VARIABLE = "HELIOGRAPH_CLUSTER_SECRET"  # as heliograph/config.py names it
READ_BYTES_MAX = 1 << 20  # of entries in one answer of a bookie; one chunk more is read ahead (I15)
REQUEST_TIMEOUT_MS = 5_000
TICK_SECONDS = 0.05
READ_ATTEMPTS_MAX = 6  # with the pauses between them, time for Ray to restart a bookie
PAUSE_SECONDS = 0.25  # after the first failed attempt; doubled with each


def read_ranges(ranges: Sequence[LedgerRange], columns: Sequence[str] = ALL_COLUMNS) -> Iterator[pa.RecordBatch]:
    """The messages of ``ranges``, in order, as record batches of bounded size.

    Raises:
        QuorumLostError: no replica of an entry answers, after several attempts.
        NoSuchEntryError: the topic was trimmed since the ranges were planned, or data was lost.
        EntryDamagedError: every copy of an entry is damaged.
        UnsupportedError: an entry cannot be shown as rows; says why.
    """
    rows = Rows(columns)
    for piece, entries in _read_ahead(ranges):
        for entry in entries:
            rows.add_entry(piece.topic, piece.partition, piece.ledger_id, entry.entry_id, entry.payload)
            if rows.is_full:
                yield rows.take()
    if rows.count:
        yield rows.take()


def _read_ahead(ranges: Sequence[LedgerRange]) -> Iterator[tuple[LedgerRange, Sequence[LedgerEntry]]]:
    with _LoopThread() as thread:
        fetcher = thread.run(_open(ranges))
        try:
            coming = thread.submit(fetcher.next_chunk())
            while (chunk := coming.result()) is not None:
                coming = thread.submit(fetcher.next_chunk())
                yield chunk
        finally:
            thread.run(fetcher.close())


async def _open(ranges: Sequence[LedgerRange]) -> Fetcher:
    return Fetcher(ranges)


class Fetcher:
    """One task's way to the bookies. Lives on one event loop."""

    def __init__(self, ranges: Sequence[LedgerRange]) -> None:
        self._addresses = {bookie: address for piece in ranges for bookie, address in piece.addresses}
        # A task is started by Ray or Spark and gets the secret as they do: from the environment, not with the ranges.
        self._client = BookieClient(self._addresses.get, _now_ms, secret=os.environ.get(SECRET_VARIABLE) or None)
        self._health = BookieHealth()
        self._chunks = self._all_chunks(ranges)
        self._turn = asyncio.Lock()

    async def next_chunk(self) -> tuple[LedgerRange, Sequence[LedgerEntry]] | None:
        """The next consecutive entries, or None at the end."""
        async with self._turn:
            return await anext(self._chunks, None)

    async def close(self) -> None:
        """Close all connections; a read under way fails."""
        self._client.close()

    async def _all_chunks(
        self, ranges: Sequence[LedgerRange]
    ) -> AsyncIterator[tuple[LedgerRange, Sequence[LedgerEntry]]]:
        for piece in ranges:
            first = piece.first_entry_id
            while first <= piece.last_entry_id:
                entries = await self._read_patiently(piece, first)
                assert entries[0].entry_id == first, "a read starts where it was asked to"
                yield piece, entries
                first = entries[-1].entry_id + 1

    async def _read_patiently(self, piece: LedgerRange, first: int) -> Sequence[LedgerEntry]:
        for attempt in range(1, READ_ATTEMPTS_MAX + 1):
            try:
                return await self._read(piece, first)
            except HeliographError as error:
                if error.advice is not Advice.RETRY or attempt == READ_ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    async def _read(self, piece: LedgerRange, first: int) -> Sequence[LedgerEntry]:
        record = piece.record()
        check_range(record, first, piece.last_entry_id, piece.last_entry_id)  # I3
        core = ReadCore(record, first, piece.last_entry_id, READ_BYTES_MAX, self._health)
        read = _Read(core, self._client)
        read.run(core.start(_now_ms()))
        while not read.done.done():
            await asyncio.wait([read.done], timeout=TICK_SECONDS)
            now = _now_ms()
            self._client.expire(now)
            read.run(core.tick(now))
        return read.done.result()


class _Read:
    """Runs the effects of one ReadCore."""

    def __init__(self, core: ReadCore, client: BookieClient) -> None:
        self._core = core
        self._client = client
        self.done: asyncio.Future[Sequence[LedgerEntry]] = asyncio.get_running_loop().create_future()

    def run(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ReadBatch):
                self._ask(effect)
            elif isinstance(effect, ReadFinished):
                self.done.set_result(effect.entries)
            elif isinstance(effect, Failed):
                self.done.set_exception(effect.error)
            # a CopyDamaged is for whoever repairs: the auditor's own checks find it

    def _ask(self, effect: ReadBatch) -> None:
        connection = self._client.connection(effect.bookie_id)
        if connection is None:
            asyncio.get_running_loop().call_soon(self._answer, effect, Reply.UNKNOWN, [])
            return
        request = Request(
            Op.READ_BATCH,
            0,
            ledger_id=effect.ledger_id,
            entry_id=effect.first_entry_id,
            limit=effect.max_bytes,
            last_entry_id=effect.last_entry_id,
        )
        connection.request(request, b"", self._on_answer, effect, REQUEST_TIMEOUT_MS)

    def _on_answer(self, effect: ReadBatch, answer: Answer | BookieError, body: memoryview) -> None:
        self._answer(effect, *batch_of_entries(answer, body, effect.ledger_id, effect.first_entry_id))

    def _answer(self, effect: ReadBatch, reply: Reply, entries: Sequence[LedgerEntry]) -> None:
        if not self.done.done():
            self.run(self._core.on_batch_answer(effect.request, reply, entries, _now_ms()))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _LoopThread:
    """An event loop in a thread of its own, for the length of a ``with`` block."""

    def __enter__(self) -> _LoopThread:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="range-reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> Any:
        """Start it; the future of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run it and wait for its result."""
        result: R = self.submit(coroutine).result()
        return result


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
