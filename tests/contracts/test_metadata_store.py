"""What every metadata backend does: each clause of ``metadata/store.py``, on every backend there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from heliograph.errors import BadRequestError
from metadata.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    ValueTooLargeError,
)
from metadata.store import (
    VALUE_BYTES_MAX,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    SessionState,
    Set,
    Stat,
    WatchEvent,
)
from tests.contracts.metadata_backends import BACKENDS, Backend, backends_here, eventually, run_on

Run = Callable[[Callable[[Backend], Awaitable[None]]], None]
CREATED, DELETED, CHANGED, CHILD = EventType.CREATED, EventType.DELETED, EventType.CHANGED, EventType.CHILD


@pytest.fixture(params=backends_here())
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return partial(run_on, BACKENDS[request.param], tmp_path)


def test_create_get_set_and_their_stats(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        assert await store.create("/a", b"one") == "/a"
        value, first = await store.get("/a")
        assert value == b"one"
        assert (first.version, first.cversion, first.ephemeral_owner, first.data_length, first.num_children) == (
            0, 0, 0, 3, 0,
        )  # fmt: skip
        assert first.czxid == first.mzxid > 0
        assert first.created_ms == first.modified_ms > 1_500_000_000_000

        changed = await store.set("/a", b"three")
        assert (changed.version, changed.data_length, changed.czxid) == (1, 5, first.czxid)
        assert changed.mzxid > first.mzxid
        assert await store.get("/a") == (b"three", changed)
        assert await store.exists("/a") == changed
        assert (await store.set("/a", b"", 1)).version == 2
        assert (await store.get("/a"))[0] == b""

    run(scenario)


def test_zxids_order_changes_over_the_whole_store(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        one, other = await backend.open(), await backend.open()
        await one.create("/a")
        await other.create("/b")
        a, b = await one.set("/a", b""), await other.exists("/b")
        assert b is not None
        assert a.czxid < b.czxid < a.mzxid

    run(scenario)


def test_create_refuses(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/a", b"kept")
        await store.create("/e", ephemeral=True)
        with pytest.raises(NodeExistsError):
            await store.create("/a", b"lost")
        with pytest.raises(NodeExistsError):
            await store.create("/")
        with pytest.raises(NoNodeError):
            await store.create("/x/y")
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.create("/e/child")
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.create("/e/child/grandchild", parents=True)
        assert (await store.get("/a"))[0] == b"kept"
        assert await store.children("/") == ["a", "e"]

    run(scenario)


def test_create_with_parents(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/a/b/c", b"leaf", ephemeral=True, parents=True)
        assert await store.get("/a/b") == (b"", await store.exists("/a/b"))
        stat = await store.exists("/a/b")
        assert stat is not None
        assert stat.ephemeral_owner == 0
        await store.create("/a/b/d", parents=True)
        assert await store.children("/a/b") == ["c", "d"]
        with pytest.raises(NodeExistsError):
            await store.create("/a/b", parents=True)
        assert await store.create("/q/n-", sequence=True, parents=True) == "/q/n-0000000000"

    run(scenario)


def test_set_and_delete_compare_versions(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/a", b"one")
        with pytest.raises(BadVersionError):
            await store.set("/a", b"two", 1)
        with pytest.raises(BadVersionError):
            await store.delete("/a", 1)
        assert (await store.get("/a"))[0] == b"one"
        await store.set("/a", b"two", 0)
        await store.create("/a/b")
        with pytest.raises(NotEmptyError):
            await store.delete("/a", 1)
        await store.delete("/a/b", 0)
        await store.delete("/a")
        with pytest.raises(NoNodeError):
            await store.delete("/a")
        with pytest.raises(NoNodeError):
            await store.set("/a", b"")
        with pytest.raises(NoNodeError):
            await store.get("/a")
        with pytest.raises(NoNodeError):
            await store.children("/a")
        assert await store.exists("/a") is None

    run(scenario)


def test_root(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        assert await store.children("/") == []
        before = await store.exists("/")
        assert before is not None
        await store.set("/", b"value", before.version)
        assert (await store.get("/"))[0] == b"value"
        with pytest.raises(InvalidPathError):
            await store.delete("/")
        with pytest.raises(InvalidPathError):
            await store.multi([Delete("/")])

    run(scenario)


@pytest.mark.parametrize(
    "path",
    ["", "a", "a/b", "/a/", "//", "/a//b", "/.", "/a/../b", "/a/./b", "/a/..", "/a\x00", "/a\n", "/\x7f", "/\ud800",
     "/\uf000", "/\ufff0", "/\U0001f600"],
)  # fmt: skip
def test_paths_that_are_refused(run: Run, path: str) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.create(path),
            lambda: store.get(path),
            lambda: store.set(path, b""),
            lambda: store.delete(path),
            lambda: store.exists(path),
            lambda: store.children(path),
            lambda: store.multi([Create("/fine"), Check(path)]),
            lambda: store.watch(path, lambda _: None),
            lambda: store.sync(path),
        ]
        for call in calls:
            with pytest.raises(InvalidPathError):
                await call()
        assert await store.children("/") == []

    run(scenario)


def test_paths_that_are_fine(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        names = ["...", ".a", "a b", "a%2Fb", "ünï", "中文", "~", "-"]
        for name in names:
            await store.create(f"/{name}")
        assert await store.children("/") == sorted(names)

    run(scenario)


def test_large_values(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        largest = bytes(VALUE_BYTES_MAX)
        await store.create("/a", largest)
        assert (await store.get("/a"))[0] == largest
        with pytest.raises(ValueTooLargeError):
            await store.set("/a", largest + b"x")
        with pytest.raises(ValueTooLargeError):
            await store.create("/b", largest + b"x")
        with pytest.raises(ValueTooLargeError):
            await store.set("/a", bytes(20 * VALUE_BYTES_MAX))
        await store.multi([Create(f"/c{number}", largest) for number in range(4)])
        assert await store.children("/") == ["a", "c0", "c1", "c2", "c3"]

    run(scenario)


def test_children_are_sorted_and_counted(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/p")
        for name in ("b", "c", "a"):
            await store.create(f"/p/{name}")
        await store.delete("/p/c")
        assert await store.children("/p") == ["a", "b"]
        stat = await store.exists("/p")
        assert stat is not None
        assert (stat.num_children, stat.cversion, stat.version) == (2, 4, 0)
        assert stat.pzxid > stat.mzxid
        await store.create("/p/a/deeper")
        assert await store.exists("/p") == stat

    run(scenario)


def test_sequences_grow_per_parent_and_are_never_used_again(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        one, other = await backend.open(), await backend.open()
        await one.create("/p")
        await one.create("/q")
        assert await one.create("/p/n-", sequence=True) == "/p/n-0000000000"
        assert await other.create("/p/m-", b"v", sequence=True) == "/p/m-0000000001"
        await one.delete("/p/m-0000000001")
        await one.delete("/p/n-0000000000")
        assert await one.create("/p/n-", sequence=True, ephemeral=True) == "/p/n-0000000002"
        await one.create("/p/plain")
        assert await one.create("/p/n-", sequence=True) == "/p/n-0000000004"
        assert await one.create("/q/", sequence=True) == "/q/0000000000"
        made = await asyncio.gather(*(store.create("/q/n-", sequence=True) for store in (one, other) * 20))
        assert sorted(made) == [f"/q/n-{number:010d}" for number in range(1, 41)]

    run(scenario)


def test_ephemerals_live_as_long_as_their_session(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        owner, expired, observer = [await backend.open() for _ in range(3)]
        await observer.create("/p")
        await owner.create("/p/one", ephemeral=True)
        await expired.create("/p/two", ephemeral=True)
        await owner.create("/p/stays")
        stat = await observer.exists("/p/one")
        assert stat is not None
        assert stat.ephemeral_owner == owner.session_id != expired.session_id
        await observer.delete("/p/one")
        await owner.create("/p/one", ephemeral=True)
        await observer.set("/p/one", b"anybody may")
        await backend.expire(expired)
        assert await observer.children("/p") == ["one", "stays"]
        await owner.close()
        assert await observer.children("/p") == ["stays"]

    run(scenario)


def test_multi_does_all(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        results = await store.multi(
            [
                Create("/p", b"v"),
                Create("/p/e", ephemeral=True),
                Create("/p/n-", sequence=True),
                Set("/p", b"w", 0),
                Check("/p", 1),
                Check("/p/e"),
                Delete("/p/e", 0),
            ]
        )
        assert results[:3] == ["/p", "/p/e", "/p/n-0000000001"]
        assert results[4:] == [None, None, None]
        stat = results[3]
        assert isinstance(stat, Stat)
        assert (stat.version, stat.num_children, stat.czxid) == (1, 2, stat.mzxid)
        assert await store.children("/p") == ["n-0000000001"]
        assert await store.multi([]) == []

    run(scenario)


MULTI_FAILURES: list[tuple[Operation, type[MetadataError]]] = [
    (Create("/kept"), NodeExistsError),
    (Create("/none/child"), NoNodeError),
    (Create("/fleeting/child"), NoChildrenForEphemeralsError),
    (Set("/none", b""), NoNodeError),
    (Set("/kept", b"", 7), BadVersionError),
    (Delete("/none"), NoNodeError),
    (Delete("/kept", 7), BadVersionError),
    (Delete("/kept"), NotEmptyError),
    (Check("/none"), NoNodeError),
    (Check("/kept", 7), BadVersionError),
]


@pytest.mark.parametrize(("failing", "expected"), MULTI_FAILURES, ids=lambda value: str(value)[:30])
def test_multi_does_nothing_when_one_fails(run: Run, failing: Operation, expected: type[MetadataError]) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        events: list[WatchEvent] = []
        await store.create("/kept", b"v")
        await store.create("/kept/child")
        await store.create("/gone")
        await store.create("/fleeting", ephemeral=True)
        before = [await store.exists(path) for path in ("/", "/kept", "/gone")]
        await store.watch("/", events.append)
        with pytest.raises(expected) as raised:
            await store.multi(
                [
                    Create("/new"),
                    Create("/new/e", ephemeral=True),
                    Create("/kept/n-", sequence=True),
                    Set("/kept", b"changed"),
                    Delete("/gone"),
                    failing,
                    Delete("/never/reached"),
                ]
            )
        assert raised.value.operation_index == 5
        assert [await store.exists(path) for path in ("/", "/kept", "/gone")] == before
        assert await store.get("/kept") == (b"v", before[1])
        assert await store.children("/kept") == ["child"]
        assert await store.children("/") == ["fleeting", "gone", "kept"]
        assert events == []
        assert await store.create("/kept/n-", sequence=True) == "/kept/n-0000000001"
        await store.close()

    run(scenario)


def test_data_watch_fires_once(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_exists_watch_fires_once(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_child_watch_fires_once(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_a_failed_read_leaves_no_watch(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_every_watcher_is_called_and_own_changes_count(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/a")
        first: list[WatchEvent] = []
        second: list[WatchEvent] = []
        await store.get("/a", first.append)
        await store.exists("/a", second.append)
        await store.set("/a", b"")
        await store.sync()
        assert first == second == [WatchEvent(CHANGED, "/a")]

    run(scenario)


def test_recursive_watch_sees_everything_below_until_cancelled(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_recursive_watch_of_the_root(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        events: list[WatchEvent] = []
        await store.watch("/", events.append)
        await store.set("/", b"x")
        await store.create("/a/b", parents=True)
        await store.sync()
        assert events == [WatchEvent(CHANGED, "/"), WatchEvent(CREATED, "/a"), WatchEvent(CREATED, "/a/b")]

    run(scenario)


def test_no_event_after_cancel_even_if_the_change_was_first(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        watch = await store.watch("/a", lambda event: pytest.fail(f"told of {event}"))
        creating = asyncio.ensure_future(store.create("/b"))
        watch.cancel()
        await creating
        await store.create("/a")
        await store.sync()

    run(scenario)


def test_the_event_comes_before_the_state_that_caused_it(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        reader, writer = await backend.open(), await backend.open()
        await writer.create("/a", b"0")
        for number in range(1, 51):
            events: list[WatchEvent] = []
            await reader.get("/a", events.append)
            writing = asyncio.ensure_future(writer.set("/a", b"%d" % number))
            while int((await reader.get("/a"))[0]) < number:
                pass
            assert events == [WatchEvent(CHANGED, "/a")]
            await writing

    run(scenario)


def test_events_come_in_the_order_of_the_changes(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        reader, one, other = [await backend.open() for _ in range(3)]
        events: list[WatchEvent] = []
        await reader.watch("/", events.append)
        made = await asyncio.gather(*(store.create("/n-", sequence=True) for store in (one, other) * 30))
        await reader.sync()
        assert [event.path for event in events] == sorted(made)

    run(scenario)


def test_a_session_that_ends_tells_the_watchers_of_its_ephemerals(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_a_failing_watcher_harms_nobody(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
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

    run(scenario)


def test_writes_of_one_client_happen_in_call_order(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        await store.create("/a")
        stats = await asyncio.gather(*(store.set("/a", b"%d" % number) for number in range(100)))
        assert [stat.version for stat in stats] == list(range(1, 101))
        assert (await store.get("/a"))[0] == b"99"

    run(scenario)


def test_a_write_is_seen_by_all_after_sync(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        one, other = await backend.open(), await backend.open()
        for number in range(20):
            await one.create(f"/n{number}")
            await other.sync("/")
            assert await other.exists(f"/n{number}") is not None

    run(scenario)


def test_compare_and_set_lets_one_of_many_win(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        stores = [await backend.open() for _ in range(5)]
        await stores[0].create("/a")
        results = await asyncio.gather(*(store.set("/a", b"", 0) for store in stores), return_exceptions=True)
        assert sum(isinstance(result, Stat) for result in results) == 1
        assert sum(isinstance(result, BadVersionError) for result in results) == 4

    run(scenario)


def test_a_lost_session_is_told_and_can_do_nothing_more(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store, observer = await backend.open(), await backend.open()
        states: list[SessionState] = []
        events: list[WatchEvent] = []
        store.add_session_listener(states.append)
        assert store.state is SessionState.CONNECTED
        await store.create("/e", ephemeral=True)
        await store.watch("/", events.append)
        await backend.expire(store)
        await eventually(lambda: store.state is SessionState.LOST)
        await eventually(lambda: states[-1:] == [SessionState.LOST])  # I13
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

    run(scenario)


def test_a_session_is_told_its_timeout(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        assert store.session_timeout_ms == 10_000
        await store.close()

    run(scenario)


def test_close_ends_the_session_once(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        store = await backend.open()
        states: list[SessionState] = []
        store.add_session_listener(states.append)
        await store.close()
        await store.close()
        assert store.state is SessionState.LOST
        assert states == [SessionState.LOST]
        with pytest.raises(SessionExpiredError):
            await store.exists("/")

    run(scenario)


def test_end_session_removes_a_predecessor_at_once(run: Run) -> None:
    async def scenario(backend: Backend) -> None:
        old, new = await backend.open(), await backend.open()
        await old.create("/e", ephemeral=True)
        with pytest.raises(BadRequestError):
            await new.end_session(f"{old.session_id}:wrong")
        with pytest.raises(BadRequestError):
            await new.end_session("nonsense")
        assert await new.exists("/e") is not None
        await new.end_session(old.session_token)
        assert await new.exists("/e") is None
        await eventually(lambda: old.state is SessionState.LOST)
        await new.end_session(old.session_token)
        assert new.state is SessionState.CONNECTED

    run(scenario)
