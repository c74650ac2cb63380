"""Bundles: who owns them, who should, and what a lost session means (I13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from actors.broker.bundles import bundle_path, candidate
from actors.broker.ownership import Ownership
from heliograph.errors import ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.memory import MemoryStore
from metadata.model import BrokerRegistration, NamespacePolicies
from tests.unit.broker_world import World, turns

PATH = paths.bundle("public", "default", 3)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(scenario(World()))  # type: ignore[arg-type]


async def broker(world: World, name: str) -> tuple[Ownership, MemoryStore]:
    store = await world.session()
    ownership = Ownership(store, BrokerRegistration(name, f"pulsar://{name}:6650", name))
    await ownership.start()
    return ownership, store


def test_topics_spread_over_bundles_and_bundles_over_brokers() -> None:
    policies = NamespacePolicies(bundles=16)
    found = {bundle_path(TopicName.parse(f"t{n}"), policies) for n in range(500)}
    assert len(found) == 16
    brokers = ["a", "b", "c"]
    chosen = {path: candidate(path, brokers) for path in found}
    assert set(chosen.values()) == set(brokers)
    without_b = {path: candidate(path, ["c", "a"]) for path in found}
    assert all(without_b[path] == owner for path, owner in chosen.items() if owner != "b")
    assert candidate(PATH, []) is None


def test_only_the_candidate_takes_a_free_bundle() -> None:
    async def scenario(world: World) -> None:
        a, _ = await broker(world, "a")
        b, _ = await broker(world, "b")
        should = candidate(PATH, ["a", "b"])
        owner, other = (a, b) if should == "a" else (b, a)
        named = await other.resolve(PATH)
        assert (named.broker_id, named.is_us, named.is_assigned) == (should, False, True)
        assert not other.owns(PATH)
        assert (await owner.resolve(PATH)).is_us
        assert owner.owns(PATH)
        again = await other.resolve(PATH)
        assert (again.service_url, again.is_assigned) == (f"pulsar://{should}:6650", False)
        assert not (await other.resolve(PATH, authoritative=True)).is_us  # it has an owner

    run(scenario)


def test_an_assigned_broker_takes_it_even_if_not_the_candidate() -> None:
    async def scenario(world: World) -> None:
        a, _ = await broker(world, "a")
        b, _ = await broker(world, "b")
        other = b if candidate(PATH, ["a", "b"]) == "a" else a
        assert (await other.resolve(PATH, authoritative=True)).is_us

    run(scenario)


def test_a_lost_session_owns_nothing_before_anybody_else_can() -> None:
    async def scenario(world: World) -> None:
        a, store = await broker(world, "a")
        assert (await a.resolve(PATH, authoritative=True)).is_us
        b, _ = await broker(world, "b")
        seen: list[bool] = []

        def lost() -> None:
            seen.append(a.owns(PATH))

        a.on_lost = lost
        world.server.expire_session(store.session_id)
        assert seen == [False]  # I13
        assert a.is_lost
        with pytest.raises(ServiceNotReadyError):
            await a.resolve(PATH)
        assert (await b.resolve(PATH)).is_us

    run(scenario)


def test_a_new_incarnation_ends_its_predecessors_session_at_once() -> None:
    async def scenario(world: World) -> None:
        old, _ = await broker(world, "a")
        await old.resolve(PATH, authoritative=True)
        new, _ = await broker(world, "a")
        assert old.is_lost  # I13
        assert not old.owns(PATH)
        assert (await new.resolve(PATH)).is_us
        assert [found.broker_id for found in await new.brokers()] == ["a"]

    run(scenario)


def test_a_bundle_taken_away_is_noticed() -> None:
    async def scenario(world: World) -> None:
        a, _ = await broker(world, "a")
        released: list[str] = []
        a.on_released = released.append
        await a.resolve(PATH, authoritative=True)
        await (await world.session()).delete(PATH)
        await turns(lambda: released == [PATH])
        assert not a.owns(PATH)
        await a.stop()

    run(scenario)


def test_stopping_gives_everything_back() -> None:
    async def scenario(world: World) -> None:
        a, store = await broker(world, "a")
        await a.resolve(PATH, authoritative=True)
        await a.stop()
        assert await store.exists(PATH) is None
        assert await store.children(paths.BROKERS_AVAILABLE) == []

    run(scenario)
