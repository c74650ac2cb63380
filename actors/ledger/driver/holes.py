"""Looking for holes that a dead writer left: confirmed entries that some of their bookies never got.

A writer that closes its ledger reports them; one that crashed could not. So after a recovery, the bookies are asked
what they store: one small request each, later than whatever waits for the recovery, one ledger at a time. A bookie that
is registered and silent is asked again a few times. What is not found so is left to the periodic checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from actors.ledger.driver.operation import Operation
from actors.ledger.driver.underreplication import mark_underreplicated
from actors.ledger.driver.world import World
from actors.ledger.effects import CheckFinished
from actors.ledger.inventory import CheckCore
from metadata.model import NO_ENTRY, LedgerMetadata

logger = logging.getLogger(__name__)

WAITING_MAX = 10_000  # ledgers; beyond that they are left to the periodic checks (I15)
ROUNDS_MAX = 6  # with pauses that double: with the first of 1 s, over about a minute


@dataclass(slots=True)
class _Search:
    record: LedgerMetadata
    due: int  # ms of the world's clock
    pause_ms: int
    marked: set[str]
    rounds: int = 0


class HoleSearch:
    """Checks recovered ledgers in the background and leaves tasks for the replication workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[int, _Search] = {}
        self._is_running = False
        self.bookies_found = 0  # that lacked entries

    @property
    def ledgers_waiting(self) -> int:
        """Ledgers still to be looked at."""
        return len(self._waiting)

    def begin(self, closed: LedgerMetadata, marked: Collection[str]) -> None:
        """Look at a ledger in a while.

        Args:
            marked: bookies whose holes are reported already.
        """
        if closed.last_entry_id == NO_ENTRY or len(self._waiting) >= WAITING_MAX:
            return
        pause_ms = self._world.config.hole_search_delay_ms
        search = _Search(closed, self._world.now() + pause_ms, pause_ms, set(marked))
        self._waiting[closed.ledger_id] = search
        if not self._is_running:
            self._is_running = True
            self._world.spawn(self._run())

    async def _run(self) -> None:
        while self._waiting:
            search = min(self._waiting.values(), key=lambda search: search.due)
            wait_ms = search.due - self._world.now()
            if wait_ms > 0:  # in steps: a ledger that comes meanwhile may be due before
                await asyncio.sleep(min(wait_ms, self._world.config.hole_search_delay_ms) / 1000)
                continue
            search.rounds += 1
            search.pause_ms *= 2
            search.due = self._world.now() + search.pause_ms
            if not await self._look(search) or search.rounds == ROUNDS_MAX:
                self._waiting.pop(search.record.ledger_id, None)
        self._is_running = False

    async def _look(self, search: _Search) -> bool:
        """Ask once; whether to ask again."""
        world = self._world
        core = CheckCore(search.record, is_partial=True)
        finished = cast(CheckFinished, await Operation(world, core).result())
        lacking = {bookie_id for bookie_id, _ in finished.lacking}
        fresh = lacking - search.marked
        if fresh:
            logger.info("the writer of ledger %d left holes on %s", search.record.ledger_id, sorted(fresh))
            self.bookies_found += len(fresh)
            search.marked |= fresh
            await mark_underreplicated(world.store, search.record.ledger_id, fresh)
        # Those registered no more are for the auditor, who replaces them if they stay away.
        return any(world.directory.is_registered(bookie_id) for bookie_id in finished.silent)
