"""The ownership of bundles: taking, splitting and releasing them, and the loss of a session (I13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.broker.namespaces import ownership
from heliograph.actors.broker.namespaces.bundles import (
    bundle_path,
    candidate,
    middle,
    range_name,
    range_of,
    with_split,
)
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership, end_predecessor
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import BrokerRegistration, NamespacePolicies
from heliograph.metadata.session.renewing import RenewingStore
from heliograph.metadata.store import Set
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import World, turns

TOPIC = TopicName.parse("orders")
PATH = bundle_path(TOPIC, NamespacePolicies())


async def broker(world: World, name: str) -> tuple[Ownership, MemoryStore]:
    store = await world.session()
    ownership = Ownership(store, BrokerRegistration(name, f"pulsar://{name}:6650", name), Catalog(store).bundle_of)
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


async def test_only_the_candidate_takes_a_free_bundle(world: World) -> None:
    a, _ = await broker(world, "a")
    b, _ = await broker(world, "b")
    should = candidate(PATH, ["a", "b"])
    owner, other = (a, b) if should == "a" else (b, a)
    named = await other.resolve(TOPIC)
    assert (named.broker_id, named.is_us, named.is_assigned) == (should, False, True)
    assert not other.owns(PATH)
    assert (await owner.resolve(TOPIC)).is_us
    assert owner.owns(PATH)
    again = await other.resolve(TOPIC)
    assert (again.service_url, again.is_assigned) == (f"pulsar://{should}:6650", False)
    assert not (await other.resolve(TOPIC, authoritative=True)).is_us  # it has an owner


async def test_a_free_bundle_is_taken_once_for_all_lookups(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failover all clients of a broker ask for their topics at once."""
    a, _ = await broker(world, "a")
    writes: list[int] = []
    real = MemoryStore.multi

    async def multi(store: MemoryStore, operations: Any) -> Any:
        writes.append(len(operations))
        return await real(store, operations)

    monkeypatch.setattr(MemoryStore, "multi", multi)
    b, _ = await broker(world, "b")
    writes.clear()
    found = await asyncio.gather(*(a.resolve(TOPIC, authoritative=True) for _ in range(100)))
    assert all(one.is_us for one in found)
    assert writes.count(2) == 2, "one without the parents of the node, and one with them"
    assert not (await b.resolve(TOPIC)).is_us
    assert not a._taking.tasks


async def test_the_owner_of_a_bundle_is_read_again_only_after_a_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = await broker(world, "a")
    b, store = await broker(world, "b")
    reads: list[str] = []
    get = store.get

    async def counted(path: str, *rest: Any) -> Any:
        reads.append(path)
        return await get(path, *rest)

    monkeypatch.setattr(store, "get", counted)
    await a.resolve(TOPIC, authoritative=True)
    assert [(await b.resolve(TOPIC)).broker_id for _ in range(3)] == ["a"] * 3
    assert reads.count(PATH) == 1
    assert a.begin_release(PATH)
    await a.release(PATH)
    assert (await b.resolve(TOPIC, authoritative=True)).is_us
    assert (await a.resolve(TOPIC)).broker_id == "b"


async def test_an_owner_that_was_read_before_a_change_is_not_kept_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, _), (b, _), (c, store) = [await broker(world, name) for name in "abc"]
    await a.resolve(TOPIC, authoritative=True)
    get, has_read, answers = store.get, asyncio.Event(), asyncio.Event()

    async def late(path: str, *rest: Any) -> Any:
        found = await get(path, *rest)
        if path == PATH:
            has_read.set()
            await answers.wait()
        return found

    monkeypatch.setattr(store, "get", late)
    early = asyncio.create_task(c.resolve(TOPIC))
    await has_read.wait()
    assert a.begin_release(PATH)
    await a.release(PATH)
    assert (await b.resolve(TOPIC, authoritative=True)).is_us
    has_read.clear()
    later = asyncio.create_task(c.resolve(TOPIC))
    for _ in range(20):
        await asyncio.sleep(0)
    answers.set()
    await asyncio.gather(early, later)
    assert (await c.resolve(TOPIC)).broker_id == "b"


async def test_an_assigned_broker_takes_it_even_if_not_the_candidate(world: World) -> None:
    a, _ = await broker(world, "a")
    b, _ = await broker(world, "b")
    other = b if candidate(PATH, ["a", "b"]) == "a" else a
    assert (await other.resolve(TOPIC, authoritative=True)).is_us


async def test_a_lost_session_owns_nothing_before_another_broker_can(world: World) -> None:
    a, store = await broker(world, "a")
    assert (await a.resolve(TOPIC, authoritative=True)).is_us
    b, _ = await broker(world, "b")
    seen: list[bool] = []

    def lost() -> None:
        seen.append(a.owns(PATH))

    a.on_lost = lost
    world.server.expire_session(store.session_id)
    assert seen == [False]  # I13
    assert a.is_lost
    with pytest.raises(ServiceNotReadyError):
        await a.resolve(TOPIC)
    assert (await b.resolve(TOPIC)).is_us


async def test_a_new_incarnation_ends_its_predecessors_session_at_once(world: World) -> None:
    old, _ = await broker(world, "a")
    await old.resolve(TOPIC, authoritative=True)
    new, _ = await broker(world, "a")
    assert old.is_lost  # I13
    assert not old.owns(PATH)
    assert (await new.resolve(TOPIC)).is_us
    assert [found.broker_id for found in await new.brokers()] == ["a"]


async def test_bundles_are_free_while_the_next_incarnation_still_waits(world: World) -> None:
    old, _ = await broker(world, "a")
    await old.resolve(TOPIC, authoritative=True)
    waiting = await world.session()
    await end_predecessor(waiting, "a")
    assert old.is_lost  # I13
    other, _ = await broker(world, "b")
    assert (await other.resolve(TOPIC, authoritative=True)).is_us
    await end_predecessor(waiting, "a")  # there is none
    assert [found.broker_id for found in await other.brokers()] == ["b"]


async def test_a_bundle_taken_away_is_noticed(world: World) -> None:
    a, _ = await broker(world, "a")
    released: list[str] = []
    a.on_released = released.append
    await a.resolve(TOPIC, authoritative=True)
    await (await world.session()).delete(PATH)
    await turns(lambda: released == [PATH])
    assert not a.owns(PATH)
    await a.stop()


async def test_stopping_releases_everything(world: World) -> None:
    a, store = await broker(world, "a")
    await a.resolve(TOPIC, authoritative=True)
    await a.stop()
    assert await store.exists(PATH) is None
    assert await store.children(paths.BROKERS_AVAILABLE) == []


async def split(world: World, ownership: Ownership, path: str) -> tuple[str, str]:
    """Split a bundle as its owner; return the halves."""
    store = await world.session()
    found = await Catalog(store).namespace_of(TOPIC)
    name = path.rpartition("/")[2]
    low, high = range_of(name)
    record = with_split(found.record, name, middle(name))
    cut = middle(name)
    lower, upper = (paths.bundle("public", "default", range_name(*ends)) for ends in ((low, cut), (cut, high)))
    write = Set(paths.namespace("public", "default"), codec.encode(record), found.version)
    assert await ownership.split(path, (lower, upper), write)
    return lower, upper


async def test_the_halves_of_a_split_stay_with_the_owner(world: World) -> None:
    a, store = await broker(world, "a")
    b, _ = await broker(world, "b")
    released: list[str] = []
    a.on_released = released.append
    await a.resolve(TOPIC, authoritative=True)
    halves = await split(world, a, PATH)
    assert a.owned == frozenset(halves)
    assert released == []
    assert await store.exists(PATH) is None
    assert (await b.resolve(TOPIC)).broker_id == "a"
    with pytest.raises(ServiceNotReadyError):
        await split(world, b, halves[0])  # not b's to split
    await a.stop()


async def test_a_split_of_a_namespace_that_changed_does_nothing(world: World) -> None:
    a, store = await broker(world, "a")
    await a.resolve(TOPIC, authoritative=True)
    stale = Set(paths.namespace("public", "default"), codec.encode(NamespacePolicies()), 99)
    assert not await a.split(PATH, (f"{PATH}-low", f"{PATH}-high"), stale)  # I9
    assert a.owns(PATH)
    assert await store.exists(f"{PATH}-low") is None


async def test_a_bundle_read_before_a_split_cannot_be_taken_after_it(world: World) -> None:
    """Bundles that overlap never have two owners."""
    a, store = await broker(world, "a")
    b, _ = await broker(world, "b")
    before = await Catalog(store).bundle_of(TOPIC)
    await a.resolve(TOPIC, authoritative=True)
    await split(world, a, PATH)
    with pytest.raises(ServiceNotReadyError):
        await b.take(before)
    assert b.owned == frozenset()
    assert await store.exists(PATH) is None


async def test_a_bundle_that_is_released_is_not_offered_and_loads_no_topics(world: World) -> None:
    a, _ = await broker(world, "a")
    b, _ = await broker(world, "b")
    await a.resolve(TOPIC, authoritative=True)
    assert a.begin_release(PATH)
    assert not a.begin_release(PATH)
    assert (a.owns(PATH), a.admits(PATH)) == (True, False)
    with pytest.raises(ServiceNotReadyError):
        await a.resolve(TOPIC)
    await a.release(PATH)
    assert (await b.resolve(TOPIC, authoritative=True)).is_us


async def test_a_draining_broker_is_chosen_only_when_there_is_no_other(world: World) -> None:
    a, _ = await broker(world, "a")
    b, _ = await broker(world, "b")
    await a.set_draining(True)
    topics = [TopicName.parse(f"t{number}") for number in range(40)]
    assert {(await b.resolve(topic)).broker_id for topic in topics} == {"b"}
    await b.stop()
    assert (await a.resolve(TOPIC)).is_us


class Renewed:
    """A broker whose sessions are renewed. A new session is opened once ``may_connect`` is set."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.may_connect = asyncio.Event()
        self.first = world.server.open_session()
        self.store = RenewingStore(self.first, self._connect)
        registration = BrokerRegistration(name, f"pulsar://{name}:6650", name)
        self.ownership = Ownership(self.store, registration, Catalog(self.store).bundle_of)
        self.told: list[str] = []
        self.ownership.on_lost = lambda: self.told.append("lost")
        self.ownership.on_released = lambda path: self.told.append(f"released {path}")
        self.ownership.on_reclaimed = self._reclaimed
        self.failures = 0

    async def _connect(self) -> MemoryStore:
        await self.may_connect.wait()
        return self._world.server.open_session()

    async def _reclaimed(self, path: str) -> None:
        assert not self.ownership.admits(path), "nothing is loaded before the check"
        if self.failures:
            self.failures -= 1
            raise ConnectionLossError("not now")
        self.told.append(f"reclaimed {path}")

    def expire(self) -> None:
        self._world.server.expire_session(self.store.session_id)


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "RECLAIM_PAUSE_MS", 0.001)


async def renewed(world: World, name: str) -> Renewed:
    await world.session()
    made = Renewed(world, name)
    await made.ownership.start()
    assert (await made.ownership.resolve(TOPIC, authoritative=True)).is_us
    return made


@pytest.mark.usefixtures("_short_pauses")
async def test_a_free_bundle_is_taken_back_and_its_topics_are_checked(world: World) -> None:
    a = await renewed(world, "a")
    a.failures = 2
    a.expire()
    assert a.ownership.owns(PATH)  # I13: silence, and the end of a session, prove nothing
    assert a.told == []
    a.may_connect.set()
    await turns(lambda: not a.ownership.admits(PATH))
    assert a.ownership.owns(PATH)
    await turns(lambda: a.ownership.admits(PATH))
    assert a.told == [f"reclaimed {PATH}"]
    stat = await world.server.open_session().exists(PATH)
    assert stat is not None
    assert stat.ephemeral_owner == a.store.session_id
    registered, _ = await a.store.get(paths.broker_available("a"))
    assert codec.decode(BrokerRegistration, registered).session_token == a.store.session_token
    await a.ownership.stop()


@pytest.mark.usefixtures("_short_pauses")
async def test_a_bundle_that_another_broker_took_is_dropped(world: World) -> None:
    a = await renewed(world, "a")
    a.expire()
    b, _ = await broker(world, "b")
    assert (await b.resolve(TOPIC, authoritative=True)).is_us
    a.may_connect.set()
    await turns(lambda: not a.ownership.owns(PATH))
    assert a.told == [f"released {PATH}"]  # I13
    assert (await a.ownership.resolve(TOPIC)).broker_id == "b"
    await a.ownership.stop()


@pytest.mark.usefixtures("_short_pauses")
async def test_a_bundle_that_was_split_meanwhile_is_dropped(world: World) -> None:
    a = await renewed(world, "a")
    a.expire()
    store = world.server.open_session()
    namespace = paths.namespace("public", "default")
    name = PATH.rpartition("/")[2]
    value, stat = await store.get(namespace)
    changed = with_split(codec.decode(NamespacePolicies, value), name, middle(name))
    await store.set(namespace, codec.encode(changed), stat.version)
    a.may_connect.set()
    await turns(lambda: a.told == [f"released {PATH}"])
    assert await store.exists(PATH) is None
    await a.ownership.stop()


@pytest.mark.usefixtures("_short_pauses")
async def test_a_process_that_was_replaced_gives_everything_up_and_ends_nobody(world: World) -> None:
    old = await renewed(world, "a")
    new, store = await broker(world, "a")  # ends the session of the old one
    old.may_connect.set()
    await turns(lambda: "lost" in old.told)
    assert not old.ownership.owns(PATH)  # I13
    assert (await new.resolve(TOPIC, authoritative=True)).is_us
    with pytest.raises(ServiceNotReadyError):
        await old.ownership.resolve(TOPIC)
    world.server.expire_session(store.session_id)
    await turns(lambda: not old.ownership.is_lost)  # the place is free
    assert (await old.ownership.resolve(TOPIC)).is_us
    await old.ownership.stop()
