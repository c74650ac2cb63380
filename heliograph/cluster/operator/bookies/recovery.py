"""Bookies whose disk died, or that are gone: a start on empty directories, and copies that are made again now."""

from __future__ import annotations

from heliograph.client.discovery import AUDITOR
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.departure import ChangeRoster
from heliograph.cluster.operator.granting import Outcome, Progress, Way
from heliograph.cluster.operator.ports import ClusterPort
from heliograph.metadata.operator_records import Wish, WishKind
from heliograph.metadata.recipes.occupancy import registered
from heliograph.metadata.store import MetadataStore


class Recovery:
    """The wishes to replace the disk of a bookie, and to make its copies again. The auditor does the work."""

    def __init__(self, store: MetadataStore, cluster: ClusterPort, change: ChangeRoster) -> None:
        self._store = store
        self._cluster = cluster
        self._change = change

    def ways(self) -> dict[WishKind, Way]:
        """Return how each kind of these wishes is carried out."""
        return {
            WishKind.REPLACE: Way(self._begin_replacement, self._replaced),
            WishKind.RECOVER: Way(self._begin_recovery, self._recovered),
        }

    async def _begin_replacement(self, wish: Wish) -> Outcome:
        accepts_loss = wishes.ACCEPTS_LOSS in wish.arguments.values()
        permitted: Outcome = await self._cluster.ask(AUDITOR, "permit_empty_disk", wish.subject, accepts_loss)
        await self._change(lambda now: rosters.released(now, wish.subject))
        return {"bookie": wish.subject, "is_alive": False, "ledgers_left": permitted["ledgers"]}

    async def _replaced(self, wish: Wish) -> Progress:
        if wish.outcome["is_alive"]:
            return await self._recovered(wish)
        name, now = wish.subject, wish.outcome
        if name in await registered(self._store):
            found = await self._cluster.ask(AUDITOR, "recover_bookie", name, True)
            return Progress(False, f"{name} serves again", found)
        return Progress(False, f"{name} may start on empty directories; {now['ledgers_left']} ledgers name it", now)

    async def _begin_recovery(self, wish: Wish) -> Outcome:
        found: Outcome = await self._cluster.ask(AUDITOR, "recover_bookie", wish.subject)
        return found

    async def _recovered(self, wish: Wish) -> Progress:
        """A lost bookie's ledgers are marked as far as there is room; those of one that serves are marked once."""
        method = "recovery_progress" if wish.outcome["is_alive"] else "recover_bookie"
        found = await self._cluster.ask(AUDITOR, method, wish.subject)
        left = found["ledgers_left"]
        return Progress(not left, f"{wish.subject}: {left} ledgers to be repaired" if left else "", found)
