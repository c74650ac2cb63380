"""Bookies whose disk died, or that are gone: a start on empty directories, and copies that are made again now."""

from __future__ import annotations

from heliograph.client.discovery import AUDITOR
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.granting import Outcome, Progress, Way
from heliograph.cluster.operator.ports import OperatorContext
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.operator_records import Wish, WishKind
from heliograph.metadata.recipes.occupancy import registered
from heliograph.metadata.recipes.update_loop import read


class Recovery:
    """The wishes to replace the disk of a bookie, and to make its copies again. The auditor does the work."""

    def __init__(self, context: OperatorContext) -> None:
        self._store = context.store
        self._cluster = context.cluster
        self._change = context.change

    def ways(self) -> dict[WishKind, Way]:
        """Return how each kind of these wishes is carried out."""
        return {
            WishKind.REPLACE: Way(self._begin_replacement, self._replaced),
            WishKind.RECOVER: Way(self._begin_recovery, self._recovered),
        }

    async def _begin_replacement(self, wish: Wish) -> Outcome:
        start = await self._start_of(wish.subject)
        return {"bookie": wish.subject, "is_alive": False, "ledgers_left": 0, "start": start, "is_permitted": False}

    async def _replaced(self, wish: Wish) -> Progress:
        name, now = wish.subject, wish.outcome
        if now["is_alive"]:
            return await self._recovered(wish)
        is_permitted = now.get("is_permitted", True)  # an operator of the release before permits it at once
        if name in await registered(self._store) and (is_permitted or await self._start_of(name) != now["start"]):
            found = await self._cluster.ask(AUDITOR, "recover_bookie", name, True)
            return Progress(False, f"{name} serves again", found)
        if not is_permitted:
            accepts_loss = wishes.ACCEPTS_LOSS in wish.arguments.values()
            permitted = await self._cluster.ask(AUDITOR, "permit_empty_disk", name, accepts_loss)
            await self._change(lambda roster: rosters.released(roster, name))
            now = {**now, "is_permitted": True, "ledgers_left": permitted["ledgers"]}
        return Progress(False, f"{name} may start on empty directories; {now['ledgers_left']} ledgers name it", now)

    async def _start_of(self, name: str) -> int:
        """Return the number of the latest start of a bookie, for which a permission is good; -1: it has none."""
        try:
            return (await read(self._store, paths.bookie_cookie(name), Cookie)).record.start
        except NoNodeError:
            return -1

    async def _begin_recovery(self, wish: Wish) -> Outcome:
        found: Outcome = await self._cluster.ask(AUDITOR, "recover_bookie", wish.subject)
        return found

    async def _recovered(self, wish: Wish) -> Progress:
        """A lost bookie's ledgers are marked as far as there is room; those of one that serves are marked once."""
        method = "recovery_progress" if wish.outcome["is_alive"] else "recover_bookie"
        found = await self._cluster.ask(AUDITOR, method, wish.subject)
        left = found["ledgers_left"]
        return Progress(not left, f"{wish.subject}: {left} ledgers to be repaired" if left else "", found)
