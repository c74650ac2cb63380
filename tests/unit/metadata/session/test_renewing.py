"""A store that renews its sessions: what outlives a session, what its callers and listeners are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.recipes.election import Election
from heliograph.metadata.session import renewing
from heliograph.metadata.session.renewing import RenewingStore
from heliograph.metadata.store import EventType, MetadataStore, SessionState, WatchEvent
from tests.unit.broker.world import turns

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class World:
    """A server, a store on it, and an observer. New sessions are opened while ``is_open`` is set."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.observer = self.server.open_session()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.opened: list[MemoryStore] = [self.server.open_session()]
        self.failures = 0
        self.store = RenewingStore(self.opened[0], self.connect)
        self.states: list[SessionState] = []
        self.store.add_session_listener(self.states.append)

    async def connect(self) -> MetadataStore:
        await self.is_open.wait()
        if self.failures:
            self.failures -= 1
            raise ConnectionLossError("not yet")
        self.opened.append(self.server.open_session())
        return self.opened[-1]

    def expire(self) -> None:
        self.server.expire_session(self.opened[-1].session_id)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "RENEWAL_PAUSE_MS", 0.001)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.store.close()


async def test_a_session_that_is_over_is_followed_by_another(world: World) -> None:
    store, first = world.store, world.opened[0].session_id
    await store.create("/e", ephemeral=True)
    assert (store.session_id, store.state, store.is_in_doubt) == (first, CONNECTED, False)
    world.failures = 2
    world.expire()
    assert world.states == [SUSPENDED]  # never LOST
    assert store.is_in_doubt
    await turns(lambda: store.state is CONNECTED)
    assert (world.states, store.session_id) == ([SUSPENDED, CONNECTED], world.opened[-1].session_id)
    assert store.session_token == world.opened[-1].session_token
    assert store.session_id != first
    assert not store.is_in_doubt
    assert await store.exists("/e") is None
    await store.create("/e", ephemeral=True)
    await store.close()
    await store.close()
    assert world.states[2:] == [LOST]
    assert await world.observer.exists("/e") is None
    with pytest.raises(SessionExpiredError):
        await store.exists("/e")


async def test_calls_wait_for_the_next_session_and_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.is_open.clear()
    world.expire()
    waiting = [asyncio.create_task(world.store.create(f"/{number}")) for number in range(3)]
    await asyncio.sleep(0)
    world.is_open.set()
    assert await asyncio.gather(*waiting) == ["/0", "/1", "/2"]
    made = [await world.observer.exists(f"/{number}") for number in range(3)]
    assert [stat.czxid for stat in made if stat] == sorted(stat.czxid for stat in made if stat)
    world.is_open.clear()
    world.expire()
    monkeypatch.setattr(renewing, "CALL_WAIT_SECONDS_MAX", 0)  # I15
    with pytest.raises(ConnectionLossError, match="the metadata store has not answered for 0 s"):
        await world.store.create("/late")
    late = asyncio.create_task(world.store.close())
    with pytest.raises(SessionExpiredError):
        await world.store.exists("/")
    await late


async def test_a_call_that_meets_the_end_of_the_session_may_be_repeated(world: World) -> None:
    class Ending(MemoryStore):
        async def sync(self, path: str = "/") -> None:
            world.server.expire_session(self.session_id)
            self._check()

    ending = Ending(world.server, world.opened[0].session_id)
    world.server._stores[ending.session_id] = ending
    store = RenewingStore(ending, world.connect)
    with pytest.raises(ConnectionLossError, match="ended meanwhile"):
        await store.sync()
    await turns(lambda: store.state is CONNECTED)
    await store.sync()
    await store.close()


async def test_watches_outlive_the_session(world: World) -> None:
    store, observer = world.store, world.observer
    await observer.create("/a")
    told: list[object] = []
    world.store.add_session_listener(told.append)
    for path in ("/a", "/b"):
        await store.exists(path, told.append)
    await store.get("/a", told.append)
    await store.children("/a", told.append)
    with pytest.raises(Exception, match="/b"):
        await store.get("/b", told.append)  # and no watch is left
    standing, cancelled = [await store.watch("/", told.append) for _ in range(2)]
    cancelled.cancel()
    cancelled.cancel()
    world.expire()
    await turns(lambda: store.state is CONNECTED)
    changed, child = EventType.CHANGED, EventType.CHILD
    missed = [
        WatchEvent(changed, "/a"),
        WatchEvent(changed, "/b"),
        WatchEvent(changed, "/a"),
        WatchEvent(child, "/a"),
    ]
    assert told == [SUSPENDED, *missed, CONNECTED]
    del told[:]
    await observer.set("/a", b"1")
    assert told == [WatchEvent(changed, "/a")]  # the recursive one only
    standing.cancel()
    await observer.set("/a", b"2")
    assert len(told) == 1
    await store.get("/a", told.append)
    await observer.set("/a", b"3")
    world.expire()
    await turns(lambda: store.state is CONNECTED)
    assert told[1:] == [WatchEvent(changed, "/a"), SUSPENDED, CONNECTED]  # told once


async def test_a_leader_is_elected_again_in_the_next_session(world: World) -> None:
    leader, other = Election(world.store, "e", "a"), Election(world.observer, "e", "b")
    first = await leader.campaign()
    follows = asyncio.create_task(other.campaign())
    world.expire()
    await asyncio.wait_for(first.lost.wait(), 60)
    assert (await follows).token > first.token
    again = asyncio.create_task(leader.campaign())
    await other.resign()
    assert not (await again).lost.is_set()
    await leader.resign()
