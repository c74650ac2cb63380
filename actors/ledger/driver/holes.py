"""Search for holes that a dead writer left: confirmed entries that some of their bookies never got.

A writer reports its holes when it closes the ledger; a writer that crashed does not. So after a recovery the bookies
are asked for the entries that they store, one ledger at a time, after a pause that lets the owner of the recovery go
on first. A bookie that is registered and silent is asked again a few times. The periodic checks find the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from heliograph.actors.ledger.driver.context import DriverContext
from heliograph.actors.ledger.driver.operation import Operation
from heliograph.actors.ledger.effects import CheckFinished
from heliograph.actors.ledger.inventory import CheckCore
from heliograph.metadata.model import NO_ENTRY, LedgerMetadata
from heliograph.metadata.recipes.repair_tasks import mark_underreplicated

log = logging.getLogger(__name__)

WAITING_MAX = 10_000  # ledgers; further ones are left to the periodic checks (I15)
ROUNDS_MAX = 6  # the pauses double: with a first one of 1 s they take about a minute


@dataclass(slots=True)
class _Search:
    record: LedgerMetadata
    due: int  # ms on the context's clock
    pause_ms: int
    marked: set[str]
    rounds: int = 0


class HoleSearch:
    """Background search of recovered ledgers. It marks tasks for the replication workers."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context
        self._waiting: dict[int, _Search] = {}
        self._is_running = False
        self.bookies_found = 0  # bookies that lacked entries

    @property
    def ledgers_waiting(self) -> int:
        return len(self._waiting)

    def begin(self, closed: LedgerMetadata, marked: Collection[str]) -> None:
        """Search a ledger after a pause.

        Args:
            marked: bookies whose holes are reported already.
        """
        if closed.last_entry_id == NO_ENTRY or len(self._waiting) >= WAITING_MAX:
            return
        pause_ms = self._context.config.hole_search_delay_ms
        search = _Search(closed, self._context.now() + pause_ms, pause_ms, set(marked))
        self._waiting[closed.ledger_id] = search
        if not self._is_running:
            self._is_running = True
            self._context.spawn(self._run())

    async def _run(self) -> None:
        while self._waiting:
            search = min(self._waiting.values(), key=lambda search: search.due)
            wait_ms = search.due - self._context.now()
            if wait_ms > 0:  # in steps: a ledger added meanwhile may be due before
                await asyncio.sleep(min(wait_ms, self._context.config.hole_search_delay_ms) / 1000)
                continue
            search.rounds += 1
            search.pause_ms *= 2
            search.due = self._context.now() + search.pause_ms
            if not await self._ask_bookies(search) or search.rounds == ROUNDS_MAX:
                self._waiting.pop(search.record.ledger_id, None)
        self._is_running = False

    async def _ask_bookies(self, search: _Search) -> bool:
        """Ask the bookies once. Return whether to ask again."""
        context = self._context
        core = CheckCore(search.record, is_partial=True)
        finished = cast(CheckFinished, await Operation(context, core).result())
        lacking = {bookie_id for bookie_id, _ in finished.lacking}
        fresh = lacking - search.marked
        if fresh:
            log.info("the writer of ledger %d left holes on %s", search.record.ledger_id, sorted(fresh))
            self.bookies_found += len(fresh)
            search.marked |= fresh
            await mark_underreplicated(context.store, search.record.ledger_id, fresh)
        # A silent bookie that is not registered is left to the auditor, which replaces it if it stays away.
        return any(context.directory.is_registered(bookie_id) for bookie_id in finished.silent)
