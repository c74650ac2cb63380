"""The way of one part out of the cluster, or off a node that is to leave. Each step may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, MutableMapping

from heliograph.actors.auditor.checks import last_copies
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.auditor.placements.index import placement_of
from heliograph.actors.auditor.widest_ensemble import require_writable, widest_ensemble
from heliograph.base.errors import ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.client.discovery import AUDITOR
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.ports import ClusterPort, OperatorContext
from heliograph.metadata import paths
from heliograph.metadata.store import MetadataStore

POLL_SECONDS = 1.0
READS_AT_ONCE_MAX = 16  # I15
REFUSED_SECONDS = 5.0  # after which a part that cannot leave is asked about again
REGISTERED_SECONDS = 60.0  # for the registration of a stopped bookie to go; that of a killed one ends with its session


class Departure:
    """One part that leaves."""

    def __init__(
        self, name: str, context: OperatorContext, erasing: MutableMapping[str, bool], left: MutableMapping[str, int]
    ) -> None:
        """
        Args:
            erasing: bookies whose data is to be deleted; set to whether it was.
            left: is given the number of ledgers to be moved.
        """
        self._name = name
        self._store = context.store
        self._cluster = context.cluster
        self._change = context.change
        self._note = context.note
        self._erasing = erasing
        self._left = left

    async def leave_node(self) -> None:
        """Begin to take out a part that can run on a node that is to leave only, unless the others need it."""
        name = self._name
        if kind_of(name) == "bookie":
            try:
                await self._cluster.ask(AUDITOR, "decommission", name)
            except ConflictError as error:
                self._note(name, f"{name} is on a node that is to leave, and stays for now: {error}")
                await asyncio.sleep(REFUSED_SECONDS)
                return
            except NotFoundError:
                pass  # it never served
        self._note(name, "")
        await self._change(lambda now: rosters.with_leaving(now, [name]))

    async def take_out(self) -> None:
        """Empty a bookie or unload a broker, end it and take it off the roster.

        Raises:
            HeliographError: a step failed; to be repeated.
        """
        name = self._name
        if kind_of(name) == "bookie":
            await self._empty()
            if name in self._erasing:
                self._erasing[name] = await self._cluster.erase(name) or self._erasing[name]
            await self._cluster.remove(name)
            await self._forget()
        else:
            self._note(name, f"{name} gives its topics away")
            await unload(name, self._store, self._cluster)
            await self._cluster.remove(name)
        self._note(name, "")
        await self._change(lambda now: rosters.without(now, name))

    async def _empty(self) -> None:
        name = self._name
        while True:
            try:
                found = await self._cluster.ask(AUDITOR, "decommission", name)
            except NotFoundError:
                return  # it never served
            except ConflictError as error:
                self._note(name, f"{name} cannot leave now: {error}")
                await asyncio.sleep(REFUSED_SECONDS)
                continue
            if found["is_drained"]:
                return
            self._left[name] = found["ledgers_left"]
            self._note(name, f"{name} is being emptied: {found['ledgers_left']} ledgers to be moved")
            await asyncio.sleep(POLL_SECONDS)

    async def _forget(self) -> None:
        try:
            async with asyncio.timeout(REGISTERED_SECONDS):
                while True:
                    try:
                        await self._cluster.ask(AUDITOR, "finish_decommission", self._name)
                    except ServiceNotReadyError:
                        await asyncio.sleep(POLL_SECONDS)
                    except NotFoundError:
                        return
                    else:
                        return
        except TimeoutError:
            raise ServiceNotReadyError(f"{self._name} is stopped and still registered") from None


async def unload(name: str, store: MetadataStore, cluster: ClusterPort) -> None:
    """Have a broker give its topics to others, if there are any and it serves.

    Raises:
        HeliographError: it did not.
    """
    brokers = await store.children(paths.BROKERS_AVAILABLE)
    if name in brokers and len(brokers) > 1:
        await cluster.ask(name, "asked", "set_draining", {"is_draining": True})


async def require_others(store: MetadataStore, leaving: Collection[str], default_ensemble_size: int) -> None:
    """Check that the cluster can do without some bookies.

    Args:
        default_ensemble_size: of namespaces that do not set their own.

    Raises:
        ConflictError: too few writable bookies would be left for the widest ensemble, or one that is dead may hold the
            last copies of entries.
        MetadataError: the store failed.
    """
    widest = await widest_ensemble(store, default_ensemble_size, READS_AT_ONCE_MAX)
    alive = {*await store.children(paths.BOOKIES_AVAILABLE), *await store.children(paths.BOOKIES_READONLY)}
    dead = {*leaving} - alive
    needed = max(default_ensemble_size, widest)
    last: list[int] = []
    async for ledgers in scan_ledgers(store, READS_AT_ONCE_MAX):
        needed = max([needed, *(ledger.ensemble_size for ledger in ledgers)])
        held = [one for one in map(placement_of, ledgers) if not dead.isdisjoint(one.bookies)]
        last += last_copies(held, {name for one in held for name in one.bookies} - alive)
    await require_writable(store, leaving, needed, "count")
    if last:
        raise ConflictError(
            f"{', '.join(sorted(dead))} may hold the last copies of entries in {len(last)} ledgers, such as {last[0]}: "
            "start the bookies that are down first",
            field="count",
        )
