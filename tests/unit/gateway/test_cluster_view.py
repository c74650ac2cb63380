"""The view of brokers and bookies, over a metadata store in memory."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.gateway import services
from heliograph.gateway.cluster_view import MetadataClusterView
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.ports import BookieView
from heliograph.gateway.services import Services
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import BookieRegistration, BrokerRegistration
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from tests.unit.gateway.world import View, World


async def _prepared(server: MemoryServer) -> None:
    store = server.open_session()
    await initialise(store)
    broker = BrokerRegistration("broker-1", "pulsar://h:6650", "broker-1")
    await store.create(paths.broker_available("broker-1"), codec.encode(broker))
    for path, name in [(paths.bookie_available("b2"), "b2"), (paths.bookie_readonly("b1"), "b1")]:
        await store.create(path, codec.encode(BookieRegistration(name, f"{name}:3181", "rack-1", 5, 10)))


async def test_who_serves_is_listed_by_id() -> None:
    server = MemoryServer()
    await _prepared(server)

    async def connect() -> MetadataStore:
        return server.open_session()

    view = MetadataClusterView(connect)
    assert await view.brokers() == [BrokerRegistration("broker-1", "pulsar://h:6650", "broker-1")]
    assert await view.bookies() == [
        BookieView("b1", "b1:3181", "rack-1", False, 5, 10),
        BookieView("b2", "b2:3181", "rack-1", True, 5, 10),
    ]
    await view.close()


async def test_a_part_that_left_since_the_report_is_down_at_once_and_stays_dated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = MemoryServer()
    await _prepared(server)
    bookies = [PartReport(name, "bookie", "ALIVE", address=f"{name}:3181") for name in ("b1", "b2", "b3")]
    others = [
        PartReport("broker-1", "broker", address="pulsar://h:6650"),
        PartReport("auditor", "auditor", address="x"),
    ]

    async def current(_: MetadataStore) -> ClusterReport:
        return ClusterReport("operator", 1, parts=(*bookies, *others))

    async def connect() -> MetadataStore:
        return server.open_session()

    monkeypatch.setattr("heliograph.gateway.cluster_view.current_report", current)
    view = MetadataClusterView(connect)
    first, again = await view.report(), await view.report()
    assert [part.name for part in first.parts if not part.is_well] == ["b3"]
    gone = first.parts[2]
    assert (gone.address, gone.note) == ("", "has just left the metadata")
    assert gone.since_ms == again.parts[2].since_ms > 0
    await server.open_session().create(paths.bookie_available("b3"), codec.encode(BookieRegistration("b3", "b3:3181")))
    assert all(part.is_well for part in (await view.report()).parts)
    await view.close()


async def test_a_lost_session_is_replaced() -> None:
    server = MemoryServer()
    await _prepared(server)
    sessions: list[int] = []

    async def connect() -> MetadataStore:
        store = server.open_session()
        sessions.append(store.session_id)
        return store

    view = MetadataClusterView(connect)
    await asyncio.gather(view.brokers(), view.bookies())
    assert len(sessions) == 1
    server.expire_session(sessions[0])
    brokers, bookies = await asyncio.gather(view.brokers(), view.bookies())
    assert (len(brokers), len(bookies)) == (1, 2)
    assert len(sessions) == 2
    await view.close()


async def test_a_store_that_cannot_be_reached_is_tried_again_at_the_next_question() -> None:
    server = MemoryServer()
    await _prepared(server)
    attempts = 0

    async def connect() -> MetadataStore:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ConnectionLossError("nobody there")
        return server.open_session()

    view = MetadataClusterView(connect)
    with pytest.raises(HeliographError):
        await view.brokers()
    assert len(await view.brokers()) == 1
    await view.close()


async def test_an_empty_store() -> None:
    server = MemoryServer()

    async def connect() -> MetadataStore:
        return server.open_session()

    empty = MetadataClusterView(connect)
    assert (await empty.brokers(), await empty.bookies()) == ([], [])
    await empty.close()


class SilentView(View):
    async def report(self) -> ClusterReport:
        raise ServiceNotReadyError("the connection is lost")


class Brokers:
    def __init__(self, silent_seconds: float) -> None:
        self._silent_seconds = silent_seconds

    async def names(self) -> list[str]:
        return ["bookie-1", "broker-1"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        assert (part, method, arguments) == ("broker-1", "statistics", [])
        return {"metadata_silent_seconds": self._silent_seconds}


@pytest.mark.parametrize(("silent", "reason"), [(65.0, "is silent since {}: open topics are served"), (0.1, "is lost")])
def test_a_report_that_cannot_be_read_says_since_when_the_store_is_silent(silent: float, reason: str) -> None:
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "time", SimpleNamespace(time=lambda: now))
        asked = Services(cast(Any, World()), World(), SilentView(), GatewayConfig(port=0), parts=Brokers(silent))
        since = time.strftime("%H:%M:%S", time.localtime(now - 65))
        with pytest.raises(ServiceNotReadyError, match=reason.format(since)):
            asyncio.run(asked.report())
