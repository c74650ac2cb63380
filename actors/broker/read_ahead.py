"""Reads a subscription's entries from the bookies before they are wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.broker.chain import Chain
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from heliograph.errors import HeliographError

READ_ENTRIES_MAX = 200  # of one read from the bookies
REPLAY_READ_ENTRIES_MAX = 16  # of one read for entries that are delivered again
READ_BYTES_MAX = 4 << 20
READ_AHEAD_BYTES_MAX = 8 << 20  # entries of one subscription that were read and not pushed yet (I15)
READ_RETRY_SECONDS = 0.2

log = logging.getLogger(__name__)


class ReadAhead:
    """Entries in neighbourhood, in memory before they are pushed. One read is under way at a time.

    Args:
        on_read: called after each read, with or without success.
    """

    def __init__(self, chain: Chain, reader: TopicReader, on_read: Callable[[], None]) -> None:
        self._chain = chain
        self._reader = reader
        self._on_read = on_read
        self._entries: dict[int, TopicEntry] = {}
        self._bytes = 0
        self._end = -1  # reading goes on here
        self._reading: asyncio.Task[None] | None = None

    def take(self, index: int) -> TopicEntry | None:
        """An entry that was read ahead, or is in the cache."""
        entry = self._entries.pop(index, None) if self._entries else None
        if entry is not None:
            self._bytes -= len(entry.payload)
            return entry
        return self._reader.cached(index)

    def start_at(self, index: int, *, is_replay: bool) -> None:
        """``index`` is wanted and ``take`` has it not: read from there on."""
        if self._reading is None:
            self.drop()
            self._end = index
            self._start(REPLAY_READ_ENTRIES_MAX if is_replay else READ_ENTRIES_MAX)

    def go_on(self) -> None:
        """Have the next read under way while what was read is being pushed."""
        if self._entries and self._reading is None and self._bytes <= READ_AHEAD_BYTES_MAX - READ_BYTES_MAX:
            at = self._end
            if self._chain.first <= at < self._chain.end and self._reader.cached(at) is None:
                self._start(READ_ENTRIES_MAX)

    def drop(self) -> None:
        """Forget what was read."""
        self._entries.clear()
        self._bytes = 0
        self._end = -1

    def stop(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
        self.drop()

    def _start(self, entries_max: int) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read(entries_max))

    async def _read(self, entries_max: int) -> None:
        first = self._end
        try:
            if first >= self._chain.first:
                found = await self._reader.read(first, entries_max, READ_BYTES_MAX)
                if first == self._end:  # nobody moved meanwhile
                    for index, entry in found:
                        self._entries[index] = entry
                        self._bytes += len(entry.payload)
                    self._end = found[-1][0] + 1
        except HeliographError as error:
            log.warning("reading from entry %d on: %s", first, error)
            await asyncio.sleep(READ_RETRY_SECONDS)
        finally:
            self._reading = None
        self._on_read()
