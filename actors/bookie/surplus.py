"""Entries of ledgers that metadata does not place here any more: a repair gave their place to another bookie.

Only a CLOSED ledger is looked at: what it holds, and where, does not change any more but by repairs (I5). A repair
copies entries first and names their new home second (I10), so entries that nobody names may be on their way in. They go
only if they were found so in two passes, an interval apart, without a change to the ledger here in between, and once
more by a direct read while this bookie holds the lock that repairs take.

What goes was acknowledged once, so the ledger is in limbo and fenced from before that: it says "unknown", never "no"
(I6). Entries may come back by recovery adds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from actors.bookie.storage import Storage
from metadata import paths
from metadata.claim import claim
from metadata.errors import MetadataError, NoNodeError, RecordError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore
from metadata.update_loop import read

LOOKS_PER_ROUND_MAX = 1_000  # reads of metadata in one round of garbage collection

_log = logging.getLogger(__name__)


class Surplus:
    """Passes over all local ledgers, a bounded number of them in each round."""

    def __init__(self, storage: Storage, empty: Callable[[int], Awaitable[None]]) -> None:
        """
        Args:
            empty: removes the entries of a ledger, which is in limbo by then, durably.
        """
        self._storage = storage
        self._bookie_id = storage.config.bookie_id
        self._interval_seconds = storage.config.surplus_interval_ms / 1000
        self._empty = empty
        self._left: list[int] = []  # ledgers still to be looked at in this pass
        self._suspects: set[int] = set()  # of the last pass
        self._found: set[int] = set()  # of this one
        self._pass_due = 0.0

    async def round(self, store: MetadataStore, now: float) -> int:
        """Look at some ledgers; returns how many were emptied. ``now``: seconds of a monotonic clock.

        Raises:
            MetadataError: the store could not be asked; what was not looked at has its turn in the next round.
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
            return False  # somebody repairs it
        try:
            if not await self._is_surplus(store, ledger_id) or not self._storage.ledgers.is_unchanged(ledger_id):
                return False
            self._storage.put_into_limbo(ledger_id, is_fenced=True)  # I6: before anything goes
            await self._empty(ledger_id)
            self._storage.ledgers.emptied(ledger_id)
            _log.info("ledger %d is not placed here any more: its entries were removed", ledger_id)
            return True
        finally:
            with contextlib.suppress(MetadataError):
                await store.delete(lock)

    async def _is_surplus(self, store: MetadataStore, ledger_id: int) -> bool:
        try:
            ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
        except NoNodeError:
            return False  # gone altogether: that is seen to elsewhere
        except RecordError as error:
            _log.warning("ledger %d is kept, and the others have their turn: %s", ledger_id, error)
            return False
        return ledger.is_closed and all(self._bookie_id not in segment.bookies for segment in ledger.segments)
