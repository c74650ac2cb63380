"""Removes surplus entries, of ledgers whose place a repair gave to another bookie.

Only CLOSED ledgers are examined, because only repairs change where their entries belong (I5). A repair copies entries
first and names their new home afterwards (I10), so entries that metadata does not name may just have arrived. They are
removed only if two passes, an interval apart, found them so without a change of the ledger here in between, and a
direct read under the lock that repairs take confirms it.

The removed entries were acknowledged once, so the ledger is put into limbo and fenced first: it answers "unknown",
never "no" (I6). A repair may bring entries back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.metadata import paths
from heliograph.metadata.errors import MetadataError, NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.lock import claim
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

LOOKS_PER_ROUND_MAX = 1_000  # reads of metadata in one round of garbage collection

log = logging.getLogger(__name__)


class Surplus:
    """Passes over all local ledgers, a bounded number in each round."""

    def __init__(self, storage: BookieStorage, empty: Callable[[int], Awaitable[None]]) -> None:
        """
        Args:
            empty: removes the entries of a ledger durably; the ledger is in limbo by then.
        """
        self._storage = storage
        self._bookie_id = storage.config.bookie_id
        self._interval_seconds = storage.config.surplus_interval_ms / 1000
        self._empty = empty
        self._left: list[int] = []  # ledgers still to be examined in this pass
        self._suspects: set[int] = set()  # found surplus in the last pass
        self._found: set[int] = set()  # found surplus in this pass
        self._pass_due = 0.0

    async def round(self, store: MetadataStore, now: float) -> int:
        """Examine some ledgers; return how many were emptied. ``now``: seconds of a monotonic clock.

        Raises:
            MetadataError: the store did not answer. The remaining ledgers are examined in the next round.
            BookieStorageError: the disk failed.
        """
        if not self._left:
            if now < self._pass_due:
                return 0
            self._pass_due = now + self._interval_seconds
            self._suspects, self._found = self._found, set()
            self._left = self._storage.ledgers.ids()
        emptied = 0
        for _ in range(min(len(self._left), LOOKS_PER_ROUND_MAX)):
            emptied += await self._look(store, self._left[-1])
            self._left.pop()
        return emptied

    async def _look(self, store: MetadataStore, ledger_id: int) -> bool:
        state = self._storage.ledgers.get(ledger_id)
        if state is None or state.last_entry_id < 0 or not await self._is_surplus(store, ledger_id):
            return False
        if ledger_id in self._suspects and self._storage.ledgers.is_unchanged(ledger_id):
            return await self._remove(store, ledger_id)
        self._found.add(ledger_id)
        self._storage.ledgers.watch(ledger_id)
        return False

    async def _remove(self, store: MetadataStore, ledger_id: int) -> bool:
        lock = paths.underreplication_lock(ledger_id)
        if not await claim(store, lock, parents=True):
            return False  # a worker repairs it now
        try:
            if not await self._is_surplus(store, ledger_id) or not self._storage.ledgers.is_unchanged(ledger_id):
                return False
            self._storage.put_into_limbo(ledger_id, is_fenced=True)  # I6: before the removal
            await self._empty(ledger_id)
            self._storage.ledgers.emptied(ledger_id)
            log.info("ledger %d is no longer placed here: removed its entries", ledger_id)
            return True
        finally:
            with contextlib.suppress(MetadataError):
                await store.delete(lock)

    async def _is_surplus(self, store: MetadataStore, ledger_id: int) -> bool:
        try:
            ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
        except NoNodeError:
            return False  # deleted: garbage collection removes it
        except RecordError as error:
            log.warning("ledger %d is kept: %s", ledger_id, error)
            return False
        return ledger.is_closed and all(self._bookie_id not in segment.bookies for segment in ledger.segments)
