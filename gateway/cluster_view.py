"""The registered brokers and bookies, and the report of the cluster, read from the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.gateway.ports import BookieView, ClusterView
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError, SessionExpiredError
from heliograph.metadata.model import BookieRegistration, BrokerRegistration
from heliograph.metadata.operator_records import BookieRack, ClusterReport, PartReport, Wish
from heliograph.metadata.parents import children_if_any
from heliograph.metadata.store import MetadataStore
from heliograph.report.record import current_report

R = TypeVar("R")
T = TypeVar("T")


class MetadataClusterView(ClusterView):
    """A ClusterView over a metadata store. It connects at the first call, and again when its session is lost.

    Args:
        connect: opens a session with the store; the view closes it.
    """

    def __init__(self, connect: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._store: MetadataStore | None = None
        self._gone: dict[str, int] = {}  # when parts of the report were first seen to be registered no more

    @override
    async def brokers(self) -> list[BrokerRegistration]:
        return sorted(await self._records(paths.BROKERS_AVAILABLE, BrokerRegistration), key=lambda item: item.broker_id)

    @override
    async def bookies(self) -> list[BookieView]:
        writable, readonly, racks = await asyncio.gather(
            self._records(paths.BOOKIES_AVAILABLE, BookieRegistration),
            self._records(paths.BOOKIES_READONLY, BookieRegistration),
            self._records(paths.BOOKIES_RACKS, BookieRack),
        )
        given = {item.bookie_id: item.rack for item in racks}
        views = [_bookie_view(item, given, writable=True) for item in writable]
        views += [_bookie_view(item, given, writable=False) for item in readonly]
        return sorted(views, key=lambda view: view.bookie_id)

    @override
    async def report(self) -> ClusterReport:
        """Return the report; a bookie or broker that has left since it was made is down in it already."""
        report = await self._ask(current_report)
        brokers, *bookies = await asyncio.gather(
            self._records(paths.BROKERS_AVAILABLE, BrokerRegistration),
            self._ask(lambda store: children_if_any(store, paths.BOOKIES_AVAILABLE)),
            self._ask(lambda store: children_if_any(store, paths.BOOKIES_READONLY)),
        )
        registered = {item.actor_name for item in brokers}.union(*bookies)
        found = tuple(self._as_registered(part, registered) for part in report.parts)
        self._gone = {name: since for name, since in self._gone.items() if name not in registered}
        return replace(report, parts=found)

    def _as_registered(self, part: PartReport, registered: Container[str]) -> PartReport:
        if part.kind not in ("bookie", "broker") or not part.address or part.name in registered:
            return part
        since = self._gone.setdefault(part.name, wall_ms())
        return replace(part, address="", note="has just left the metadata", is_warning=False, since_ms=since)

    @override
    async def wishes(self) -> list[Wish]:
        return sorted(await self._records(paths.WISHES, Wish), key=lambda wish: wish.asked_ms)

    @override
    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _records(self, parent: str, kind: type[R]) -> list[R]:
        return await self._ask(lambda store: _records(store, parent, kind))

    async def _ask(self, read: Callable[[MetadataStore], Awaitable[T]]) -> T:
        store = await self._session()
        try:
            return await read(store)
        except SessionExpiredError:
            if self._store is store:
                await self.close()
            return await read(await self._session())

    async def _session(self) -> MetadataStore:
        async with self._connecting:
            if self._store is None:
                self._store = await self._connect()
            return self._store


def _bookie_view(item: BookieRegistration, racks: Mapping[str, str], *, writable: bool) -> BookieView:
    rack = racks.get(item.bookie_id, item.rack)
    return BookieView(item.bookie_id, item.address, rack, writable, item.free_bytes, item.total_bytes)


async def _records(store: MetadataStore, parent: str, kind: type[R]) -> list[R]:
    names = await children_if_any(store, parent)
    found = await asyncio.gather(*(_record(store, f"{parent}/{name}", kind) for name in names))
    return [record for record in found if record is not None]


async def _record(store: MetadataStore, path: str, kind: type[R]) -> R | None:
    try:
        value, _ = await store.get(path)
    except NoNodeError:
        return None  # deleted between the listing and the read
    return codec.decode(kind, value)
