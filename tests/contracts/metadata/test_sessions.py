"""Order between clients, and sessions from begin to end, on every backend: clauses of ``metadata/store.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.base.errors import BadRequestError
from heliograph.metadata.errors import BadVersionError, SessionExpiredError
from heliograph.metadata.store import SessionState, Stat, WatchEvent
from tests.contracts.metadata.backends import Backend
from tests.waits import until


async def test_writes_of_one_client_happen_in_call_order(backend: Backend) -> None:
    store = await backend.open()
    await store.create("/a")
    stats = await asyncio.gather(*(store.set("/a", b"%d" % number) for number in range(100)))
    assert [stat.version for stat in stats] == list(range(1, 101))
    assert (await store.get("/a"))[0] == b"99"


async def test_a_write_is_seen_by_all_after_sync(backend: Backend) -> None:
    one, other = await backend.open(), await backend.open()
    for number in range(20):
        await one.create(f"/n{number}")
        await other.sync("/")
        assert await other.exists(f"/n{number}") is not None


async def test_compare_and_set_lets_one_of_many_win(backend: Backend) -> None:
    stores = [await backend.open() for _ in range(5)]
    await stores[0].create("/a")
    results = await asyncio.gather(*(store.set("/a", b"", 0) for store in stores), return_exceptions=True)
    assert sum(isinstance(result, Stat) for result in results) == 1
    assert sum(isinstance(result, BadVersionError) for result in results) == 4


async def test_a_lost_session_is_told_and_can_do_nothing_more(backend: Backend) -> None:
    store, observer = await backend.open(), await backend.open()
    states: list[SessionState] = []
    events: list[WatchEvent] = []
    store.add_session_listener(states.append)
    assert store.state is SessionState.CONNECTED
    await store.create("/e", ephemeral=True)
    await store.watch("/", events.append)
    await backend.expire(store)
    await until(lambda: store.state is SessionState.LOST)
    await until(lambda: states[-1:] == [SessionState.LOST])  # I13
    assert states[:-1] in ([], [SessionState.SUSPENDED])  # some stores break the connection first
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.create("/x"),
        lambda: store.get("/"),
        lambda: store.set("/", b""),
        lambda: store.delete("/e"),
        lambda: store.exists("/"),
        lambda: store.children("/"),
        lambda: store.multi([]),
        lambda: store.watch("/", events.append),
        lambda: store.sync(),
        lambda: store.end_session(observer.session_token),
    ]
    for call in calls:
        with pytest.raises(SessionExpiredError):
            await call()
    assert await observer.children("/") == []
    assert events == []
    await store.close()


async def test_a_session_is_told_its_timeout(backend: Backend) -> None:
    store = await backend.open()
    assert store.session_timeout_ms == 10_000
    await store.close()


async def test_close_ends_the_session_once(backend: Backend) -> None:
    store = await backend.open()
    states: list[SessionState] = []
    store.add_session_listener(states.append)
    await store.close()
    await store.close()
    assert store.state is SessionState.LOST
    assert states == [SessionState.LOST]
    with pytest.raises(SessionExpiredError):
        await store.exists("/")


async def test_end_session_removes_a_predecessor_at_once(backend: Backend) -> None:
    old, new = await backend.open(), await backend.open()
    await old.create("/e", ephemeral=True)
    with pytest.raises(BadRequestError):
        await new.end_session(f"{old.session_id}:wrong")
    with pytest.raises(BadRequestError):
        await new.end_session("nonsense")
    assert await new.exists("/e") is not None
    await new.end_session(old.session_token)
    assert await new.exists("/e") is None
    await until(lambda: old.state is SessionState.LOST)
    await new.end_session(old.session_token)
    assert new.state is SessionState.CONNECTED
