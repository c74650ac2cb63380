"""The way of one part out of the cluster, or off a node that is to leave. Each step may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.base.errors import ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.client.discovery import AUDITOR
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.ports import ClusterPort
from heliograph.metadata import paths
from heliograph.metadata.operator_records import Roster
from heliograph.metadata.store import MetadataStore

POLL_SECONDS = 1.0
REFUSED_SECONDS = 5.0  # after which a part that cannot leave is asked about again
REGISTERED_SECONDS = 60.0  # for the registration of a stopped bookie to go; that of a killed one ends with its session

ChangeRoster = Callable[[Callable[[Roster], Roster]], Awaitable[None]]
Note = Callable[[str, str], None]  # name of a part, what is to be said of it; empty: nothing


class Departure:
    """One part that leaves."""

    def __init__(self, name: str, store: MetadataStore, cluster: ClusterPort, change: ChangeRoster, note: Note) -> None:
        self._name = name
        self._store = store
        self._cluster = cluster
        self._change = change
        self._note = note

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
