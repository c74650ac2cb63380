"""Reads planned ranges straight from bookies into record batches; runs in Ray tasks and in Spark executors.

The bookies are asked by the ledgers' driver, in the form that needs no metadata, on an event loop in a thread, so that
the next entries arrive while the caller decodes the ones before.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import uvloop

from actors.ledger.driver import DetachedReader, LedgerClientConfig, LedgerEntry
from heliograph.errors import Advice, HeliographError
from pipelines.columns import ALL_COLUMNS, Rows
from pipelines.ranges import LedgerRange

R = TypeVar("R")

SECRET_VARIABLE = "HELIOGRAPH_CLUSTER_SECRET"  # as heliograph/config.py names it
READ_BYTES_MAX = 1 << 20  # of entries in one answer of a bookie; one chunk more is read ahead (I15)
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
        addresses = {bookie: address for piece in ranges for bookie, address in piece.addresses}
        # A task is started by Ray or Spark and gets the secret as they do: from the environment, not with the ranges.
        config = LedgerClientConfig(cluster_secret=os.environ.get(SECRET_VARIABLE) or None)
        self._reader = DetachedReader(addresses, config)
        self._chunks = self._all_chunks(ranges)
        self._turn = asyncio.Lock()

    async def next_chunk(self) -> tuple[LedgerRange, Sequence[LedgerEntry]] | None:
        """The next consecutive entries, or None at the end."""
        async with self._turn:
            return await anext(self._chunks, None)

    async def close(self) -> None:
        """Close all connections; a read under way fails."""
        await self._reader.close()

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
        return await self._reader.read(piece.record(), first, piece.last_entry_id, READ_BYTES_MAX)


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
