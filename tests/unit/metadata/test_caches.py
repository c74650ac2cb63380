"""Watchers of the store: changes and caches of records; holders of nodes: claims and locks."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from heliograph.metadata.model import CursorRecord
from heliograph.metadata.recipes import record_cache
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.recipes.election import Election
from heliograph.metadata.recipes.lock import Lock, claim
from heliograph.metadata.recipes.record_cache import RecordCache
from heliograph.metadata.store import EventType, SessionState, Stat, Watcher, WatchEvent
from tests.waits import until


def cursor(name: str, ledger_id: int = 0) -> bytes:
    return encode(CursorRecord(name, (ledger_id, 0)))


class CountingStore(MemoryStore):
    """A store that counts its reads, and fails as many as it is told to."""

    def __init__(self, server: MemoryServer) -> None:
        session = server.open_session()
        super().__init__(server, session.session_id)
        server._stores[self.session_id] = self
        self.gets = 0
        self.failing = 0

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        self.gets += 1
        if self.failing:
            self.failing -= 1
            raise ConnectionLossError("lost")
        return await super().get(path, watcher)


async def test_changes_are_told_and_so_is_that_some_may_be_missing(server: MemoryServer) -> None:
    store, other = server.open_session(), server.open_session()
    told: list[object] = []
    changes = Changes(store, ("/a", "/b"), told.append, lambda: told.append("missed"))
    await changes.start()
    await other.create("/a")
    await other.create("/b/c", parents=True)
    await other.create("/other")
    assert told == [WatchEvent(EventType.CREATED, path) for path in ("/a", "/b", "/b/c")]
    server.suspend_session(store.session_id)
    await other.set("/a", b"")
    assert len(told) == 3
    server.resume_session(store.session_id)
    assert told[3:] == ["missed"]
    changes.stop()
    changes.stop()
    await other.delete("/a")
    server.suspend_session(store.session_id)
    server.resume_session(store.session_id)
    assert len(told) == 4
    server.expire_session(store.session_id)
    with pytest.raises(SessionExpiredError):
        await changes.start()


async def test_a_cache_follows_the_records(server: MemoryServer) -> None:
    store, other = CountingStore(server), server.open_session()
    changed = 0

    def on_change() -> None:
        nonlocal changed
        changed += 1

    cache = RecordCache(store, "/p", CursorRecord, on_change)
    await cache.start()  # without a parent there are none
    assert dict(cache.records) == {}
    await other.create("/p/a", cursor("a"), parents=True)
    await other.create("/p/b", cursor("b"))
    await until(lambda: set(cache.records) == {"a", "b"})
    reads = store.gets
    await other.set("/p/b", cursor("b", 7))
    await other.create("/p/b/child", b"no record, and none of ours")
    await until(lambda: cache.records["b"].mark_delete == (7, 0))
    assert store.gets == reads + 1  # only what changed is read again
    await other.create("/p/damaged", b"nonsense")
    await other.delete("/p/a")
    await until(lambda: set(cache.records) == {"b"})
    before = changed
    await other.set("/p/b", cursor("b", 7))
    await asyncio.sleep(0.01)
    assert changed == before  # the record says what it said
    await cache.stop()
    await other.delete("/p/b/child")
    await other.delete("/p/b")
    assert set(cache.records) == {"b"}


async def test_a_cache_catches_up_after_a_cut_and_after_failures(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_cache, "RETRY_SECONDS", 0)
    store, other = CountingStore(server), server.open_session()
    await other.create("/p/a", cursor("a"), parents=True)
    cache = RecordCache(store, "/p", CursorRecord)
    await cache.start()
    server.suspend_session(store.session_id)
    await other.delete("/p/a")
    await other.create("/p/b", cursor("b"))
    await asyncio.sleep(0)
    assert set(cache.records) == {"a"}
    store.failing = 3
    server.resume_session(store.session_id)
    await until(lambda: set(cache.records) == {"b"})
    assert store.failing == 0
    server.expire_session(store.session_id)
    assert set(cache.records) == {"b"}
    await cache.stop()


async def test_a_cache_that_cannot_start_follows_nothing(server: MemoryServer) -> None:
    store, other = CountingStore(server), server.open_session()
    await other.create("/p/a", cursor("a"), parents=True)
    cache = RecordCache(store, "/p", CursorRecord)
    store.failing = 1
    with pytest.raises(ConnectionLossError):
        await cache.start()
    await other.create("/p/b", cursor("b"))
    await asyncio.sleep(0.01)
    assert dict(cache.records) == {}


async def test_a_claim_is_one_sessions_and_recognised_by_it(server: MemoryServer) -> None:
    ours, theirs = server.open_session(), server.open_session()
    with pytest.raises(NoNodeError):
        await claim(ours, "/p/a")
    assert await claim(ours, "/p/a", b"v", parents=True)
    assert await claim(ours, "/p/a", b"v")
    assert not await claim(theirs, "/p/a")
    server.expire_session(ours.session_id)
    assert await claim(theirs, "/p/a")
    await theirs.create("/p/persistent")
    assert not await claim(theirs, "/p/persistent")


async def test_a_lock_is_held_by_one_at_a_time_in_the_order_of_asking(server: MemoryServer) -> None:
    stores = [server.open_session() for _ in range(4)]
    locks = [Lock(store, "l", f"c{number}") for number, store in enumerate(stores)]
    order: list[int] = []
    tokens: list[int] = []
    inside = 0

    async def work(number: int) -> None:
        nonlocal inside
        async with locks[number] as held:
            inside += 1
            assert inside == 1
            assert await locks[0].holder() == f"c{number}"
            assert not held.lost.is_set()
            order.append(number)
            tokens.append(held.token)
            await asyncio.sleep(0.002)
            inside -= 1
        assert held.lost.is_set()

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(work(number)))
        for _ in range(30):
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert tokens == sorted(set(tokens))
    assert await locks[0].holder() is None


async def test_a_lock_falls_with_its_holders_session_and_a_cancelled_wait_leaves_no_trace(server: MemoryServer) -> None:
    stores = [server.open_session() for _ in range(3)]
    locks = [Lock(store, "l", f"c{number}") for number, store in enumerate(stores)]
    held = await locks[0].acquire()

    async def wait(number: int) -> None:
        async with locks[number]:
            pass

    impatient = asyncio.create_task(wait(1))
    while len(await stores[2].children("/locks/l")) < 2:
        pass
    impatient.cancel()
    await asyncio.wait([impatient])
    assert len(await stores[2].children("/locks/l")) == 1
    patient = asyncio.create_task(locks[2].acquire())
    await asyncio.sleep(0.002)
    assert not patient.done()
    server.expire_session(stores[0].session_id)
    assert held.lost.is_set()  # I13
    assert (await patient).token > held.token


async def test_who_left_an_election_hears_nothing_more_of_the_session(server: MemoryServer) -> None:
    store = server.open_session()
    for _ in range(3):
        candidate = Election(store, "x", "c")
        await candidate.campaign()
        await candidate.resign()
    assert store._clock._listeners == []
    candidate = Election(store, "x", "c")
    won = await candidate.campaign()
    server.suspend_session(store.session_id)
    assert not won.lost.is_set()  # it may still lead: its vote stands
    server.resume_session(store.session_id)
    assert store.state is SessionState.CONNECTED
    server.expire_session(store.session_id)
    assert won.lost.is_set()  # I13
    assert store._clock._listeners == []


async def test_a_listener_that_was_removed_is_not_called(server: MemoryServer) -> None:
    store = server.open_session()
    states: list[SessionState] = []
    store.remove_session_listener(states.append)
    store.add_session_listener(states.append)
    store.add_session_listener(states.append)
    store.remove_session_listener(states.append)
    server.suspend_session(store.session_id)
    assert states == [SessionState.SUSPENDED]
    with pytest.raises(ConnectionLossError):
        await store.get("/")
    missed: list[WatchEvent] = []
    server.resume_session(store.session_id)
    await store.create("/a")
    await store.get("/a", missed.append)
    server.suspend_session(store.session_id)
    other = server.open_session()
    await other.set("/a", b"")
    assert missed == []
    server.resume_session(store.session_id)
    assert missed == [WatchEvent(EventType.CHANGED, "/a")]
