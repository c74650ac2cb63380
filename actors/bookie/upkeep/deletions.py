"""Searches metadata for deleted ledgers among the ledgers of this bookie: it asks for no others (I14).

Metadata keeps up to 10,000 ledgers in one directory, and tells when the list of a directory has last changed (pzxid).
A round asks for that of each directory with ledgers of this bookie. Only where it is new, the ledgers are looked up:
one by one, or by the pages of the list where that is cheaper. So a round costs one read for each directory, and more
for those in which ledgers come and go. Where a backend does not tell of changes (pzxid 0), each ledger is looked up.

A ledger that was not found is a suspect. It is deleted only after a ``sync``, so that the answer is not that of a
server that lags behind, a direct read, and another look at the identity of the store.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from heliograph.actors.bookie.store.ledgers import LedgerTable, StoredLedger
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.parents import child_pages
from heliograph.metadata.recipes.restored_mark import is_restored
from heliograph.metadata.store import MetadataStore

READS_PER_SECOND_MAX = 100  # of one bookie: one percent of a core, at 100 us for a read
READS_PER_SECOND_OF_ALL = 3_000  # of all bookies together: a tenth of a core of the store
READS_PER_BATCH = 50  # without a pause; the bookie's share of a second is spent at once
SUSPECTS_AT_ONCE = 256  # that are confirmed and deleted together
NAMES_PER_READ = 100  # names of a list that cost as much as one read
LEDGERS_PER_STEP = 10_000  # that are sorted into directories in one step of the event loop: about 2 ms  # I24


class DeletionSearch:
    """Rounds over the ledgers of a bookie. A round that reaches its bound is continued by the next one."""

    def __init__(
        self, ledgers: LedgerTable, interval_ms: int, recognise: Callable[[MetadataStore], Awaitable[None]]
    ) -> None:
        """
        Args:
            interval_ms: the time between two rounds, which bounds the reads of one.
            recognise: raises CookieMismatchError if the store is, or has become, another cluster's.
        """
        self._ledgers = ledgers
        self._interval_seconds = interval_ms / 1000
        self._recognise = recognise
        self._left: list[int] = []  # directories still to be asked for in this pass, the next one last
        self._spent = 0.0  # reads of the batch under way
        self._pause_seconds = 0.0  # after a batch
        self.reads = 0.0  # since the start

    async def round(self, store: MetadataStore) -> AsyncIterator[list[int]]:
        """Yield ledgers that metadata has deleted, at most SUSPECTS_AT_ONCE at once.

        Raises:
            MetadataError: the store did not answer.
            CookieMismatchError: metadata does not know this bookie. Nothing was yielded because of that.
        """
        bookies = await store.exists(paths.BOOKIES_COOKIES)
        rate = min(READS_PER_SECOND_MAX, READS_PER_SECOND_OF_ALL / max(1, bookies.num_children if bookies else 1))
        self._pause_seconds = READS_PER_BATCH / rate
        self._spent = 0.0
        reads_end = self.reads + max(READS_PER_BATCH, rate * self._interval_seconds)
        held = await self._by_directory()
        self._left = [number for number in self._left if number in held] or sorted(held, reverse=True)
        while self._left and self.reads < reads_end:
            suspects = await self._missing(store, self._left[-1], held[self._left[-1]])
            for first in range(0, len(suspects), SUSPECTS_AT_ONCE):
                if first and self.reads >= reads_end:
                    return
                if gone := await self._confirmed(store, suspects[first : first + SUSPECTS_AT_ONCE]):
                    yield gone
            self._left.pop()

    async def _by_directory(self) -> dict[int, list[StoredLedger]]:
        """Return the ledgers that this bookie has, before metadata is read (I14)."""
        states = list(self._ledgers.states())
        found: defaultdict[int, list[StoredLedger]] = defaultdict(list)
        for first in range(0, len(states), LEDGERS_PER_STEP):
            for state in states[first : first + LEDGERS_PER_STEP]:
                found[state.ledger_id // paths.LEDGERS_PER_DIRECTORY].append(state)
            await asyncio.sleep(0)
        return found

    async def _missing(self, store: MetadataStore, number: int, held: list[StoredLedger]) -> list[int]:
        """Return the ledgers of a directory that metadata does not have."""
        path = paths.ledger_directory(number)
        stat = await store.exists(path)
        await self._spend(1)
        if stat is None:
            return [state.ledger_id for state in held]
        changed_at = stat.pzxid  # read before the ledgers are looked up: what is deleted later changes it again
        asked = [state for state in held if state.listed_at != changed_at or not changed_at]
        if len(asked) * NAMES_PER_READ > stat.num_children:
            listed = await self._listed(store, path, asked)
        else:
            listed = await self._looked_up(store, asked)
        for state in asked:
            if state.ledger_id in listed:
                state.listed_at = changed_at
        return sorted(state.ledger_id for state in asked if state.ledger_id not in listed)

    async def _listed(self, store: MetadataStore, path: str, asked: Iterable[StoredLedger]) -> set[int]:
        names = {paths.last_part(paths.ledger(state.ledger_id)): state.ledger_id for state in asked}
        found: set[int] = set()
        try:
            if names:
                async for page in child_pages(store, path, min(names)):
                    found |= {names[name] for name in page if name in names}
                    await self._spend(1 + len(page) / NAMES_PER_READ)
                    if page[-1] >= max(names):
                        break
        except NoNodeError:
            return set()
        return found

    async def _looked_up(self, store: MetadataStore, asked: Iterable[StoredLedger]) -> set[int]:
        found = set()
        for state in asked:
            if await store.exists(paths.ledger(state.ledger_id)) is not None:
                found.add(state.ledger_id)
            await self._spend(1)
        return found

    async def _confirmed(self, store: MetadataStore, suspects: list[int]) -> list[int]:
        """Return the ledgers that a direct read of the present state does not find."""
        await store.sync(paths.LEDGERS)  # I14: an answer of before a ledger was made does not count
        gone = []
        for ledger_id in suspects:
            try:
                await store.get(paths.ledger(ledger_id))
            except NoNodeError:
                gone.append(ledger_id)  # I14
            await self._spend(1)
        if not gone or await is_restored(store):
            return []
        await self._recognise(store)  # I14: a store that lost its data reports every ledger as gone
        return gone

    async def _spend(self, reads: float) -> None:
        self.reads += reads
        self._spent += reads
        if self._spent >= READS_PER_BATCH:
            self._spent = 0.0
            await asyncio.sleep(self._pause_seconds)
