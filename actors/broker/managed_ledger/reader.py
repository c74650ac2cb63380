"""The read side of a topic: the tail cache first, then the bookies, across all ledgers of the chain."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from typing_extensions import override

from heliograph.actors.broker.managed_ledger.chain import Chain, LedgerChain, Run
from heliograph.actors.broker.managed_ledger.read_budget import ReadBudget
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.entry_stamp import APART_MS_MAX
from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.errors import NoSuchLedgerError, QuorumLostError
from heliograph.metrics.metric import Histogram

READERS_MAX = 8  # ledgers of one topic kept open for reading
DROPS_A_TURN = 1_000  # of the event loop: 2 ms
LAC_WAIT_SECONDS_MAX = 10.0  # for the bookies to learn that the writer's last entry is confirmed
LAC_POLL_SECONDS = 0.05


class EntryReader(ABC):
    """Reads the entries of a chain by index, never beyond ``chain.end`` (I3).

    Args:
        budget: of bytes read ahead, shared by all topics of a broker.
    """

    def __init__(self, chain: Chain, budget: ReadBudget) -> None:
        self._chain = chain
        self.budget = budget

    @abstractmethod
    def cached(self, index: int) -> TopicEntry | None:
        """Return the entry if it is in memory."""

    @abstractmethod
    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        """Return adjacent entries of one ledger from ``first`` on with their indexes, at least one.

        Raises:
            QuorumLostError, BookieError: the entries cannot be read now; try again.
            NoSuchLedgerError: the entries were trimmed meanwhile.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the ledgers that are open for reading."""

    @abstractmethod
    async def index_at_time(self, time_ms: int, *, stored: bool = False) -> int:
        """Return the index of the first entry published at or after a time by its producer's clock, and with ``stored``
        that of the first entry stored at or after it by the topic's. Raises as ``read`` does."""

    def closed_ms(self, index: int) -> int:
        """Return when the ledger of an entry was closed, which stands for the time of an entry without one; else 0."""
        return 0

    async def stored_ms(self, index: int) -> int:
        """Return when an entry was stored, by the topic's clock (I21). Raises as ``read`` does."""
        closed = self.closed_ms(index)  # before the entry is read: it may be trimmed meanwhile
        return (await self.entry(index)).stored_by(closed)

    async def entry(self, index: int) -> TopicEntry:
        """Return one entry, from memory or from the bookies. Raises as ``read`` does."""
        cached = self.cached(index) if index >= self._chain.first else None
        return cached or (await self.read(index, 1, 1))[0][1]


class TopicReader(EntryReader):
    """Reads the ledgers of one topic."""

    def __init__(
        self, chain: LedgerChain, cache: TailCache, ledgers: LedgersPort, latency: Histogram | None = None
    ) -> None:
        super().__init__(chain, cache.read_budget)
        self._latency = latency or Histogram()  # of reads from bookies
        self._ledger_chain = chain
        self._cache = cache
        self._ledgers = ledgers
        self._readers: OrderedDict[int, LedgerReaderPort] = OrderedDict()
        self._opening = asyncio.Lock()

    @override
    def cached(self, index: int) -> TopicEntry | None:
        position = self._chain.position_at(index)
        return self._cache.get(position)

    @override
    async def index_at_time(self, time_ms: int, *, stored: bool = False) -> int:
        # A bisection: the stored time and the latest publish time up to an entry never go back (I21). Of entries by
        # earlier releases the end of their ledger counts, so that the first entry of a ledger may be found in the place
        # of a later one. Entries that are trimmed meanwhile count as older.
        is_older = partial(self._is_older, time_ms=time_ms, stored=stored)
        # First among the first entries of pieces. Then the ledgers from the piece on are brought into memory.
        chain = self._ledger_chain
        while chain.older:
            if chain.loaded_from < chain.end and await is_older(chain.loaded_from):
                break
            found = await self._last_older(chain.older, is_older)
            if found is None:
                return chain.first
            if found.ref.level == 1:
                await chain.load(Position(found.ref.first_id, 0))
                break
            await chain.expand(found)
        low, high = chain.loaded_from, chain.end
        while low < high:
            middle = (low + high) // 2
            if await is_older(middle):
                low = middle + 1
            else:
                high = middle
            low = max(low, chain.first)
        return low

    @override
    def closed_ms(self, index: int) -> int:
        return self._ledger_chain.closed_ms(index)

    async def _is_older(self, index: int, time_ms: int, *, stored: bool) -> bool:
        if index < self._chain.first:
            return True
        closed = self.closed_ms(index)  # before the entry is read: it may be trimmed meanwhile
        try:
            entry = await self.entry(index)
        except NoSuchLedgerError:
            if index >= self._chain.first:
                raise
            return True
        if stored:
            return entry.stored_by(closed) < time_ms
        latest_ms = entry.latest_ms or closed
        return (min(latest_ms, closed + APART_MS_MAX) if closed else latest_ms) < time_ms

    async def _last_older(self, runs: Sequence[Run], is_older: Callable[[int], Awaitable[bool]]) -> Run | None:
        """Return the newest run whose first entry is older than a time."""
        runs = list(runs)
        low, high = 0, len(runs)
        while low < high:
            middle = (low + high) // 2
            if await is_older(runs[middle].first):
                low = middle + 1
            else:
                high = middle
        return runs[low - 1] if low else None

    @override
    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        assert first < self._chain.end, "only confirmed entries are read"  # I3
        if first < self._chain.first:
            raise NoSuchLedgerError(f"entry {first} was trimmed meanwhile")
        span = next(self._chain.spans(first, entries_max))
        last = span.entry_id + span.length - 1
        began = time.perf_counter()
        reader = await self._reader(span.ledger_id, last)
        found = await reader.read(span.entry_id, last, bytes_max)
        self._latency.observe(time.perf_counter() - began)
        base = span.first - span.entry_id
        return [(base + entry.entry_id, TopicEntry.read(entry.payload, check=False, copies=True)) for entry in found]

    @override
    async def close(self) -> None:
        # What the cache has of the topic goes, too: nobody reads it here any more.
        readers, self._readers = list(self._readers.values()), OrderedDict()
        for reader in readers:
            await reader.close()
        chain = self._ledger_chain
        for index in range(chain.end, chain.loaded_from, -1):  # the oldest leave first, so those that are left are last
            if not self._cache.drop(chain.position_before(index)):
                break
            if index % DROPS_A_TURN == 0:  # I24
                await asyncio.sleep(0)

    async def _reader(self, ledger_id: int, last: int) -> LedgerReaderPort:
        """Return a reader of the ledger that may read up to ``last``, which our own writer knows to be confirmed."""
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
                raise QuorumLostError(f"the bookies do not know entry {last} of ledger {ledger_id} yet")
            await asyncio.sleep(LAC_POLL_SECONDS)
        return reader
