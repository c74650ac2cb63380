"""The leader: its election, its assignments, and the brokers' choice by hash without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.balance.leader import Leader
from heliograph.actors.broker.balance.load_report import LoadMeter, LoadReports, read_loads
from heliograph.actors.broker.config import BalanceLimits
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership, choose_by_hash
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import BrokerLoad, BrokerRegistration, BundleLoad
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.topic_world import FakeTopics
from tests.unit.broker.world import World, turns

TOPICS = [TopicName.parse(f"t{number}") for number in range(30)]


class Fleet:
    """Brokers that call each other directly."""

    def __init__(self) -> None:
        self.world = World()
        self.leaders: dict[str, Leader] = {}
        self.ownerships: dict[str, Ownership] = {}
        self.stores: dict[str, MemoryStore] = {}
        self.unloaded: list[tuple[str, str]] = []
        self.deaf: set[str] = set()

    async def add(self, name: str, cpu_share: float) -> None:
        store = self.stores[name] = await self.world.session()
        registration = BrokerRegistration(name, f"pulsar://{name}:6650", name)
        ownership = self.ownerships[name] = Ownership(store, registration, Catalog(store).bundle_of)
        await ownership.start()
        limits = BalanceLimits(rounds=1)
        leader = self.leaders[name] = Leader(store, ownership, self.peer, limits, 0.0)
        leader.start()
        await self.report(name, cpu_share)

    async def report(self, name: str, cpu_share: float, bundles: tuple[BundleLoad, ...] = ()) -> None:
        report = BrokerLoad(name, cpu_share=cpu_share, bundles_owned=len(bundles), bundles=bundles)
        await LoadReports(self.stores[name], self.ownerships[name], BalanceLimits()).offer(report)

    def peer(self, actor_name: str) -> Any:
        async def asked(method: str, arguments: dict[str, Any]) -> Any:
            if actor_name in self.deaf:
                raise ServiceNotReadyError("it does not answer")
            if method == "unload_bundle":
                self.unloaded.append((actor_name, arguments["path"]))
                await self.ownerships[actor_name].release(arguments["path"])
                return True
            live = {broker.broker_id: broker for broker in await self.ownerships[actor_name].brokers()}
            return await self.leaders[actor_name].assign(arguments["path"], live)

        return SimpleNamespace(asked=asked)

    @property
    def leading(self) -> list[str]:
        return [name for name, leader in self.leaders.items() if leader.is_leader]

    async def owners(self, asking: str) -> set[str]:
        return {(await self.ownerships[asking].resolve(topic)).broker_id for topic in TOPICS}

    async def stop(self) -> None:
        for leader in self.leaders.values():
            await leader.stop()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    await made.stop()


async def begin(fleet: Fleet) -> tuple[str, str]:
    """Start two brokers. Return the names of the leader and of the other one."""
    await fleet.add("a", 0.9)
    await turns(lambda: fleet.leading == ["a"])
    await fleet.add("b", 0.1)
    return "a", "b"


async def test_every_broker_follows_the_assignments_of_the_leader(fleet: Fleet) -> None:
    leader, other = await begin(fleet)
    assert await fleet.leaders[other].leader_id() == leader
    assert await fleet.owners(asking=other) == {other}  # it is asked over there
    assert await fleet.owners(asking=leader) == {other}


async def test_without_an_answer_of_the_leader_bundles_go_by_hash(fleet: Fleet) -> None:
    leader, other = await begin(fleet)
    fleet.deaf.add(leader)
    assert await fleet.owners(asking=other) == {leader, other}
    live = {broker.broker_id: broker for broker in await fleet.ownerships[other].brokers()}
    path = paths.bundle("public", "default", "any")
    assert await fleet.leaders[other].choose(path, live) == await choose_by_hash(path, live)


async def test_another_broker_leads_when_the_leaders_session_ends(fleet: Fleet) -> None:
    leader, other = await begin(fleet)
    fleet.world.server.expire_session(fleet.stores[leader].session_id)
    assert not fleet.leaders[leader].is_leader  # I13
    await turns(lambda: fleet.leading == [other])
    assert await fleet.owners(asking=other) == {other}


async def test_the_leader_sheds_bundles_of_busy_brokers(fleet: Fleet) -> None:
    leader, other = await begin(fleet)
    owner = fleet.ownerships[other]
    for topic in TOPICS:
        await owner.resolve(topic, authoritative=True)
    bundles = tuple(BundleLoad(path, 1, 1.0, 1.0) for path in sorted(owner.owned))
    await fleet.report(leader, 0.0)
    await fleet.report(other, 0.9, bundles)
    moves = await fleet.leaders[leader].balance()
    assert moves
    assert fleet.unloaded == [(other, move.path) for move in moves]
    assert all(not owner.owns(move.path) for move in moves)
    fleet.deaf.add(other)
    await fleet.report(other, 0.9, tuple(bundle for bundle in bundles if owner.owns(bundle.path)))
    assert await fleet.leaders[leader].balance() == []  # it did not answer; it is asked again another time


async def test_reports_are_the_broker_s_own_and_written_when_there_is_news(fleet: Fleet) -> None:
    await begin(fleet)
    assert set(await read_loads(fleet.stores["b"])) == {"a", "b"}
    reports = LoadReports(fleet.stores["b"], fleet.ownerships["b"], BalanceLimits())
    written = [await reports.offer(BrokerLoad("b", cpu_share=0.1)) for _ in range(8)]
    assert written == [True, False, False, False, False, False, False, True]
    stat = await fleet.stores["b"].exists(paths.broker_load("b"))
    assert stat is not None
    assert stat.ephemeral_owner == fleet.stores["b"].session_id
    value, _ = await fleet.stores["a"].get(paths.broker_load("b"))
    assert codec.decode(BrokerLoad, value).cpu_share == 0.1


async def test_a_meter_measures_rates_since_the_last_look() -> None:
    def topic(name: str, messages: int, size: int, bundle: str = "/x") -> Any:
        subscription = SimpleNamespace(messages_out=messages * 2, bytes_out=size * 2)
        return SimpleNamespace(
            name=TopicName.parse(name), bundle=bundle, messages_in=messages, ledger=SimpleNamespace(bytes_added=size),
            subscriptions={"s": subscription},
        )  # fmt: skip

    now, cpu = [0.0], [0.0]
    meter = LoadMeter("b", clock=lambda: now[0], cpu=lambda: cpu[0])
    one, loaded = topic("t", 100, 1_000), FakeTopics()
    loaded.add(one)
    await meter.look(loaded, ["/x", "/y"])
    now[0], cpu[0] = 10.0, 2.5
    one.messages_in, one.ledger.bytes_added = 200, 2_000
    one.subscriptions = topic("t", 200, 2_000).subscriptions
    one.activity.note()
    loaded.add(topic("new", 50, 500, "/y"))
    loaded.add(topic("rests", 0, 0, "/y"))
    report = await meter.look(loaded, ["/x", "/y", "/z"])
    assert (report.cpu_share, report.topics, report.bundles_owned) == (0.25, 3, 3)
    assert (report.messages_in_per_second, report.messages_out_per_second) == (15.0, 30.0)
    assert (report.bytes_in_per_second, report.bytes_out_per_second) == (150.0, 300.0)
    assert report.bundles == (
        BundleLoad("/x", 1, 30.0, 300.0), BundleLoad("/y", 2, 15.0, 150.0), BundleLoad("/z"),
    )  # fmt: skip
    now[0] = 20.0
    loaded.remove(one)
    loaded.add(topic("t", 5, 50))  # it was loaded again, and counts from 0
    report = await meter.look(loaded, ["/x", "/y"])
    assert (report.messages_in_per_second, len(meter._before)) == (0.5, 3)
    assert report.bundles == (BundleLoad("/x", 1, 1.5, 15.0), BundleLoad("/y", 2))
    assert not loaded.load, "what rests is not looked at"
    assert 0 < report.memory_share < 1
