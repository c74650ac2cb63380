"""The read side of a topic: the tail cache first, then the bookies, across all ledgers of the chain."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from actors.broker.chain import Chain
from actors.broker.ledgers import LedgerReader, Ledgers
from actors.broker.tail_cache import TailCache
from actors.broker.topic_entry import TopicEntry
from actors.errors import NoSuchLedgerError, QuorumLostError

READERS_MAX = 8  # ledgers of one topic kept open for reading
LAC_WAIT_SECONDS_MAX = 10.0  # for the bookies to learn that the writer's last entry is confirmed
LAC_POLL_SECONDS = 0.05


class TopicReader:
    """Reads entries of one topic by index. Never beyond ``chain.end`` (I3)."""

    def __init__(self, chain: Chain, cache: TailCache, ledgers: Ledgers) -> None:
        self._chain = chain
        self._cache = cache
        self._ledgers = ledgers
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._opening = asyncio.Lock()

    def cached(self, index: int) -> TopicEntry | None:
        """The entry, if it is in the cache."""
        position = self._chain.position_at(index)
        return self._cache.get(position.ledger_id, position.entry_id)

    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        """Neighbouring entries from ``first`` on, of one ledger, at least one, with their indexes.

        Raises:
            QuorumLostError, BookieError: not now; try again.
            NoSuchLedgerError: the ledger was trimmed away meanwhile.
        """
        assert self._chain.first <= first < self._chain.end, "only confirmed entries are read"  # I3
        span = next(self._chain.spans(first, entries_max))
        last = span.entry_id + span.length - 1
        reader = await self._reader(span.ledger_id, last)
        found = await reader.read(span.entry_id, last, bytes_max)
        base = span.first - span.entry_id
        return [(base + entry.entry_id, TopicEntry.read(entry.payload, check=False)) for entry in found]

    async def entry(self, index: int) -> TopicEntry:
        """One entry, from wherever it is. Raises as ``read`` does."""
        return self.cached(index) or (await self.read(index, 1, 1))[0][1]

    async def index_at_time(self, publish_time_ms: int) -> int:
        """The first entry published at or after a time, by bisection: publish times hardly ever go back. What is
        trimmed away meanwhile counts as older."""
        low, high = self._chain.first, self._chain.end
        while low < high:
            middle = (low + high) // 2
            if await self._is_older(middle, publish_time_ms):
                low = middle + 1
            else:
                high = middle
            low = max(low, self._chain.first)
        return low

    async def _is_older(self, index: int, publish_time_ms: int) -> bool:
        try:
            return (await self.entry(index)).publish_time_ms < publish_time_ms
        except NoSuchLedgerError:
            if index >= self._chain.first:
                raise
            return True

    async def close(self) -> None:
        """Let go of all ledgers."""
        readers, self._readers = list(self._readers.values()), OrderedDict()
        for reader in readers:
            await reader.close()

    async def _reader(self, ledger_id: int, last: int) -> LedgerReader:
        """A reader of the ledger that may read up to ``last``, which our own writer knows to be confirmed."""
        async with self._opening:
            reader = self._readers.get(ledger_id)
            if reader is None:
                reader = self._readers[ledger_id] = await self._ledgers.open(ledger_id)
                if len(self._readers) > READERS_MAX:
                    _, oldest = self._readers.popitem(last=False)
                    await oldest.close()
            self._readers.move_to_end(ledger_id)
        deadline = time.monotonic() + LAC_WAIT_SECONDS_MAX
        while reader.last_add_confirmed < last and await reader.read_last_add_confirmed() < last:
            if time.monotonic() > deadline:
                raise QuorumLostError(f"the bookies do not know of entry {last} of ledger {ledger_id} yet")
            await asyncio.sleep(LAC_POLL_SECONDS)
        return reader
