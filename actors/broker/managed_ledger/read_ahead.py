"""Read-ahead of one subscription: entries are read from the bookies before the dispatcher asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from operator import attrgetter

from heliograph.actors.broker.limits.unpacking import unpacked
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.read_budget import READ_BYTES_MAX
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.message_keys import needs_thread, read_key_hashes
from heliograph.actors.broker.records.topic_entry import ENTRY_OVERHEAD_BYTES, TopicEntry
from heliograph.base.errors import HeliographError

READ_ENTRIES_MAX = 200  # of one read from the bookies
REPLAY_READ_ENTRIES_MAX = 16  # of one read for entries that are delivered again
READ_AHEAD_BYTES_MAX = 8 << 20  # of entries of one subscription that were read and not pushed yet (I15)
READ_RETRY_SECONDS = 0.2
KEYS = "keys of batches"  # in the place of a tenant: all that read them have one share of what may be unpacked

log = logging.getLogger(__name__)


class SubscriptionReadAhead:
    """Adjacent entries in memory that are not pushed yet. At most one read is in flight. Read entries may be
    dropped again, if other subscriptions need their room in the reader's budget.

    Args:
        on_read: called after each read, whether it succeeded or failed.
    """

    def __init__(self, chain: Chain, reader: EntryReader, on_read: Callable[[], None]) -> None:
        self._chain = chain
        self._reader = reader
        self._on_read = on_read
        self._budget = reader.budget
        self._entries: dict[int, TopicEntry] = {}
        self._bytes = 0
        self._end = -1  # index of the next read, -1 for none
        self._reading: asyncio.Task[None] | None = None
        self._keying: asyncio.Task[None] | None = None  # reads the keys of one entry

    def take(self, index: int) -> TopicEntry | None:
        """Remove and return an entry that was read ahead, or return it from the tail cache; None when it has to be
        read."""
        entry = self._entries.pop(index, None) if self._entries else None
        if entry is not None:
            self._discount(len(entry.payload) + ENTRY_OVERHEAD_BYTES)
            return entry
        return self._reader.cached(index)

    def start_at(self, index: int, *, is_replay: bool) -> None:
        """Start a read at ``index``, which ``take`` did not have. While a read is in flight, nothing is started.

        Args:
            is_replay: the entry is delivered again, so that few entries next to it are needed.
        """
        if self._reading is None:
            self.drop()
            self._end = index
            self._start(REPLAY_READ_ENTRIES_MAX if is_replay else READ_ENTRIES_MAX)

    def has_keys(self, index: int, entry: TopicEntry) -> bool:
        """Return whether the keys of an entry's messages are read. If that takes long, a thread reads them, and the
        entry is kept meanwhile."""
        if entry.key_hashes is not None:
            return True
        if not needs_thread(entry):
            entry.key_hashes = read_key_hashes(entry)
            return True
        self._keep([(index, entry)], self._end)
        if self._keying is None:
            self._keying = asyncio.get_running_loop().create_task(self._read_keys(entry))
        return False

    def go_on(self) -> None:
        """Start the next read, if there is room, while the entries of the last one are pushed."""
        if self._entries and self._reading is None and self._bytes <= READ_AHEAD_BYTES_MAX - READ_BYTES_MAX:
            at = self._end
            if self._chain.first <= at < self._chain.end and self._reader.cached(at) is None:
                self._start(READ_ENTRIES_MAX)

    def drop(self) -> None:
        self._entries.clear()
        if self._bytes:
            self._discount(self._bytes)
        self._end = -1

    def stop(self) -> None:
        """Cancel the read in flight and discard the entries that were read."""
        if self._reading is not None:
            self._reading.cancel()
        if self._keying is not None:
            self._keying.cancel()
        self.drop()

    def _discount(self, size: int) -> None:
        self._bytes -= size
        self._budget.release(self, size)

    def _start(self, entries_max: int) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read(entries_max))

    async def _read(self, entries_max: int) -> None:
        first = self._end
        try:
            room = await self._budget.begin_read()
            try:
                is_kept = first >= self._chain.first  # not trimmed while the read waited for its room
                found = await self._reader.read(first, entries_max, room) if is_kept else []
            finally:
                self._budget.end_read(room)
            if found and first == self._end:  # no ``drop`` or ``start_at`` came meanwhile
                self._keep(found, found[-1][0] + 1)
        except HeliographError as error:
            log.warning("read-ahead from entry %d failed: %s", first, error)
            await asyncio.sleep(READ_RETRY_SECONDS)
        finally:
            self._reading = None
        self._on_read()

    async def _read_keys(self, entry: TopicEntry) -> None:
        try:
            (entry.key_hashes,) = await unpacked(KEYS, [entry], attrgetter("payload"), read_key_hashes)
        finally:
            self._keying = None
        self._on_read()

    def _keep(self, found: Sequence[tuple[int, TopicEntry]], end: int) -> None:
        self._entries.update(found)
        self._end = end
        size = sum([len(entry.payload) + ENTRY_OVERHEAD_BYTES for _, entry in found])
        self._bytes += size
        self._budget.hold(self, size)
