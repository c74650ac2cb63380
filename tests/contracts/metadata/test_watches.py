"""Watches, on every metadata backend: clauses of ``metadata/store.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.store import Delete, EventType, WatchEvent
from tests.contracts.metadata.backends import Backend

CREATED, DELETED, CHANGED, CHILD = EventType.CREATED, EventType.DELETED, EventType.CHANGED, EventType.CHILD


async def test_data_watch_fires_once(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    await store.create("/a")
    events: list[WatchEvent] = []
    await store.get("/a", events.append)
    await other.create("/a/child")
    await other.set("/a", b"1")
    await other.set("/a", b"2")
    await store.sync()
    assert events == [WatchEvent(CHANGED, "/a")]
    await other.delete("/a/child")
    await store.get("/a", events.append)
    await other.delete("/a")
    await other.create("/a")
    await store.sync()
    assert events[1:] == [WatchEvent(DELETED, "/a")]


async def test_exists_watch_fires_once(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    events: list[WatchEvent] = []
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: other.create("/a"),
        lambda: other.set("/a", b""),
        lambda: other.delete("/a"),
    ]
    for change in changes:
        await store.exists("/a", events.append)
        await change()
        await store.sync()
    assert events == [WatchEvent(CREATED, "/a"), WatchEvent(CHANGED, "/a"), WatchEvent(DELETED, "/a")]


async def test_child_watch_fires_once(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    events: list[WatchEvent] = []
    await store.create("/p")
    await store.children("/p", events.append)
    await other.set("/p", b"")
    await store.sync()
    assert events == []
    await other.create("/p/a")
    await other.create("/p/b")
    await store.children("/p", events.append)
    await other.set("/p/a", b"")
    await other.create("/p/a/deeper")
    await store.sync()
    assert events == [WatchEvent(CHILD, "/p")]
    await other.delete("/p/b")
    await store.sync()
    assert events == [WatchEvent(CHILD, "/p")] * 2
    await other.multi([Delete("/p/a/deeper"), Delete("/p/a")])
    await store.children("/p", events.append)
    await other.delete("/p")
    await store.sync()
    assert events[2:] == [WatchEvent(DELETED, "/p")]


async def test_a_failed_read_leaves_no_watch(backend: Backend) -> None:
    store = await backend.open()
    events: list[WatchEvent] = []
    with pytest.raises(NoNodeError):
        await store.get("/a", events.append)
    with pytest.raises(NoNodeError):
        await store.children("/a", events.append)
    await store.create("/a")
    await store.create("/a/b")
    await store.sync()
    assert events == []


async def test_every_watcher_is_called_and_own_changes_count(backend: Backend) -> None:
    store = await backend.open()
    await store.create("/a")
    first: list[WatchEvent] = []
    second: list[WatchEvent] = []
    await store.get("/a", first.append)
    await store.exists("/a", second.append)
    await store.set("/a", b"")
    await store.sync()
    assert first == second == [WatchEvent(CHANGED, "/a")]


async def test_recursive_watch_sees_everything_below_until_cancelled(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    events: list[WatchEvent] = []
    watch = await store.watch("/a", events.append)
    await other.create("/a")
    await other.create("/ab")
    await other.create("/a/b")
    await other.create("/a/b/c", ephemeral=True)
    await other.set("/a/b", b"")
    await other.multi([Delete("/a/b/c"), Delete("/a/b")])
    await store.sync()
    assert events == [
        WatchEvent(CREATED, "/a"),
        WatchEvent(CREATED, "/a/b"),
        WatchEvent(CREATED, "/a/b/c"),
        WatchEvent(CHANGED, "/a/b"),
        WatchEvent(DELETED, "/a/b/c"),
        WatchEvent(DELETED, "/a/b"),
    ]
    watch.cancel()
    watch.cancel()
    await other.delete("/a")
    await store.sync()
    assert len(events) == 6


async def test_recursive_watch_of_the_root(backend: Backend) -> None:
    store = await backend.open()
    events: list[WatchEvent] = []
    await store.watch("/", events.append)
    await store.set("/", b"x")
    await store.create("/a/b", parents=True)
    await store.sync()
    assert events == [WatchEvent(CHANGED, "/"), WatchEvent(CREATED, "/a"), WatchEvent(CREATED, "/a/b")]


async def test_no_event_after_cancel_even_if_the_change_was_first(backend: Backend) -> None:
    store = await backend.open()
    watch = await store.watch("/a", lambda event: pytest.fail(f"told of {event}"))
    creating = asyncio.ensure_future(store.create("/b"))
    watch.cancel()
    await creating
    await store.create("/a")
    await store.sync()


async def test_the_event_comes_before_the_state_that_caused_it(backend: Backend) -> None:
    reader, writer = await backend.open(), await backend.open()
    await writer.create("/a", b"0")
    for number in range(1, 51):
        events: list[WatchEvent] = []
        await reader.get("/a", events.append)
        writing = asyncio.ensure_future(writer.set("/a", b"%d" % number))
        while int((await reader.get("/a"))[0] or b"") < number:
            pass
        assert events == [WatchEvent(CHANGED, "/a")]
        await writing


async def test_events_come_in_the_order_of_the_changes(backend: Backend) -> None:
    reader, one, other = [await backend.open() for _ in range(3)]
    events: list[WatchEvent] = []
    await reader.watch("/", events.append)
    made = await asyncio.gather(*(store.create("/n-", sequence=True) for store in (one, other) * 30))
    await reader.sync()
    assert [event.path for event in events] == sorted(made)


async def test_a_session_that_ends_tells_the_watchers_of_its_ephemerals(backend: Backend) -> None:
    owner, observer = await backend.open(), await backend.open()
    events: list[WatchEvent] = []
    await owner.create("/p")
    await owner.create("/p/b", ephemeral=True)
    await owner.create("/p/a", ephemeral=True)
    await observer.exists("/p/a", events.append)
    await observer.children("/p", events.append)
    await owner.close()
    await observer.sync()
    # Which of a session's ephemerals goes first is the store's business.
    assert sorted(events, key=repr) == [WatchEvent(CHILD, "/p"), WatchEvent(DELETED, "/p/a")]


async def test_a_failing_watcher_harms_nobody(backend: Backend) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    store = await backend.open()
    await store.create("/a")
    events: list[WatchEvent] = []
    error = ValueError("in a watcher")

    def failing(event: WatchEvent) -> None:
        raise error

    await store.get("/a", failing)
    await store.get("/a", events.append)
    await store.set("/a", b"")
    await store.sync()
    assert events == [WatchEvent(CHANGED, "/a")]
    assert reported == [error]
