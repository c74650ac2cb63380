"""Nodes, on every metadata backend: clauses of ``metadata/store.py``, on every backend there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.metadata.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ValueTooLargeError,
)
from heliograph.metadata.parents import child_pages, children_if_any
from heliograph.metadata.store import VALUE_BYTES_MAX, Check, Create, Delete, Operation, Reap, Set, Stat, WatchEvent
from heliograph.metadata.znode import CONTAINER, TTL_MS_MAX, ttl_kind
from tests.contracts.metadata.backends import Backend


async def test_create_get_set_and_their_stats(backend: Backend) -> None:
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


async def test_null_is_a_value_of_its_own(backend: Backend) -> None:
    store = await backend.open()
    await store.create("/null", None)
    await store.create("/empty", b"")
    value, stat = await store.get("/null")
    assert (value, stat.data_length, stat.version) == (None, 0, 0)
    assert (await store.get("/empty"))[0] == b""

    assert (await store.set("/null", b"full", 0)).data_length == 4
    assert (await store.get("/null"))[0] == b"full"
    assert (await store.set("/null", None, 1)).data_length == 0
    await store.multi([Create("/null/child", None), Set("/empty", None)])
    for path in ("/null", "/null/child", "/empty"):
        assert (await store.get(path, lambda _: None))[0] is None
    with pytest.raises(BadVersionError):
        await store.set("/null", None, 0)
    await store.delete("/null/child", 0)
    restart = getattr(backend, "restart", None)  # of the embedded server: what is on the disk is read again
    if restart is not None:
        await restart()
    other = await backend.open()
    assert [(await other.get(path))[0] for path in ("/null", "/empty")] == [None, None]
    assert (await other.set("/empty", b"")).data_length == 0
    assert (await other.get("/empty"))[0] == b""


async def test_containers_are_reaped_once_they_had_children(backend: Backend) -> None:
    store, container = await backend.open(), Create("/c", b"v", kind=CONTAINER)
    assert await store.multi([container]) == ["/c"]
    stat = await store.exists("/c")
    assert stat is not None
    kinds = (CONTAINER, 0)  # ZooKeeper, and the endpoint like it, shows no kinds
    assert stat.ephemeral_owner in kinds
    await store.multi([Create("/c/child", b""), Create("/c/inner-", b"", sequence=True, kind=CONTAINER)])
    assert await store.children("/c") == ["child", "inner-0000000001"]
    await store.set("/c", None)
    value, stat = await store.get("/c")
    assert (value, stat.ephemeral_owner in kinds, stat.version) == (None, True, 1)
    assert await store.reapable(10) == []
    try:
        await store.multi([Reap("/c/inner-0000000001")])
    except UnsupportedError:
        return  # ZooKeeper's leader reaps
    except BadVersionError:
        pass  # it never had children
    with pytest.raises(NotEmptyError):
        await store.multi([Reap("/c")])
    with pytest.raises(BadVersionError):
        await store.multi([Create("/plain"), Reap("/plain")])
    with pytest.raises(NoNodeError):
        await store.multi([Reap("/plain")])
    await store.delete("/c/child")
    await store.multi([Create("/c/inner-0000000001/x"), Delete("/c/inner-0000000001/x")])
    restart = getattr(backend, "restart", None)
    if restart is not None:
        await restart()
    other = await backend.open()
    assert await other.reapable(10) == ["/c/inner-0000000001"]
    await other.multi([Reap("/c/inner-0000000001")])
    assert await other.reapable(10) == ["/c"]
    assert await other.reapable(0) == []
    await other.multi([Reap("/c"), container, Delete("/c"), container])
    assert await other.reapable(10) == []
    with pytest.raises(BadVersionError):
        await other.multi([Reap("/c")])
    await other.multi([Create("/c/x"), Delete("/c/x"), Delete("/c"), Create("/c")])
    assert await other.reapable(10) == []


async def test_nodes_with_a_time_to_live_are_reaped_when_it_is_over(backend: Backend) -> None:
    store = await backend.open()
    try:
        await store.multi([Create("/short", b"", kind=ttl_kind(1)), Create("/long", None, kind=ttl_kind(TTL_MS_MAX))])
    except UnsupportedError:
        return  # a ZooKeeper that was not told to allow them
    stats = [await store.exists(path) for path in ("/short", "/long")]
    shown = [stat.ephemeral_owner & (1 << 64) - 1 for stat in stats if stat]
    assert shown in ([0xFF00_0000_0000_0001, 0xFF00_00FF_FFFF_FFFF], [0, 0])
    await store.create("/short/child")
    await asyncio.sleep(0.02)
    assert await store.reapable(10) == []
    await store.delete("/short/child")
    due = await store.reapable(10)
    if due:  # otherwise the endpoint reaps
        assert due == ["/short"]
        with pytest.raises(BadVersionError) as caught:
            await store.multi([Reap("/short"), Reap("/long")])
        assert caught.value.operation_index == 1
        await store.multi([Reap("/short")])
        assert await store.exists("/short") is None
    for operation in (Create("/none", ephemeral=True, kind=ttl_kind(1)), Create("/none", kind=-1)):
        with pytest.raises(BadRequestError):
            await store.multi([operation])


async def test_zxids_order_changes_over_the_whole_store(backend: Backend) -> None:
    one, other = await backend.open(), await backend.open()
    await one.create("/a")
    await other.create("/b")
    a, b = await one.set("/a", b""), await other.exists("/b")
    assert b is not None
    assert a.czxid < b.czxid < a.mzxid


async def test_create_refuses(backend: Backend) -> None:
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


async def test_create_with_parents(backend: Backend) -> None:
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


@pytest.mark.parametrize("version", [1 << 31, -2, -(1 << 31) - 1])
async def test_a_version_that_no_node_can_have_is_none_of_a_node(backend: Backend, version: int) -> None:
    store = await backend.open()
    await store.create("/a", b"one")
    for operation in (Set("/a", b"two", version), Delete("/a", version), Check("/a", version)):
        others = [asyncio.ensure_future(store.get("/a")) for _ in range(3)]
        with pytest.raises(BadVersionError):
            await store.multi([operation])
        assert [value for value, _ in await asyncio.gather(*others)] == [b"one"] * 3
    with pytest.raises(BadVersionError):
        await store.set("/a", b"two", version)
    assert (await store.get("/a"))[0] == b"one"


async def test_set_and_delete_compare_versions(backend: Backend) -> None:
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


async def test_root(backend: Backend) -> None:
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


@pytest.mark.parametrize(
    "path",
    ["", "a", "a/b", "/a/", "//", "/a//b", "/.", "/a/../b", "/a/./b", "/a/..", "/a\x00", "/a\n", "/\x7f", "/\ud800",
     "/\uf000", "/\ufff0", "/\U0001f600"],
)  # fmt: skip
async def test_paths_that_are_refused(backend: Backend, path: str) -> None:
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


async def test_paths_that_are_fine(backend: Backend) -> None:
    store = await backend.open()
    names = ["...", ".a", "a b", "a%2Fb", "ünï", "中文", "~", "-"]
    for name in names:
        await store.create(f"/{name}")
    assert await store.children("/") == sorted(names)


async def test_large_values(backend: Backend) -> None:
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


async def test_children_are_sorted_and_counted(backend: Backend) -> None:
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


async def test_every_change_of_the_list_of_children_raises_its_zxid_and_nothing_else_does(backend: Backend) -> None:
    """Bookies look ledgers up again only in directories whose pzxid has changed."""
    store, other = await backend.open(), await backend.open()
    await store.create("/p")
    await store.create("/p/b")

    async def pzxid() -> int:
        await other.sync("/p")
        stat = await other.exists("/p")
        assert stat is not None
        return stat.pzxid

    seen = [await pzxid()]
    for change in (
        lambda: store.create("/p/a"),
        lambda: store.delete("/p/a"),
        lambda: store.create("/p/a"),
        lambda: store.multi([Delete("/p/a"), Delete("/p/b")]),
        lambda: store.multi([Create("/p/a"), Delete("/p/a")]),
        lambda: store.create("/p/c", ephemeral=True),
    ):
        await change()
        seen.append(await pzxid())
        assert seen[-1] > seen[-2]
    await store.set("/p/c", b"new")
    await store.set("/p", b"new")
    assert await pzxid() == seen[-1]
    await store.close()  # which ends its session, and with it the ephemeral
    while await other.exists("/p/c") is not None:  # noqa: ASYNC110 - a server may take a moment
        await asyncio.sleep(0.01)
    assert await pzxid() > seen[-1]
    await other.delete("/p")
    await other.create("/p")
    assert await pzxid() > seen[-1]


async def test_children_are_read_in_pages(backend: Backend) -> None:
    store, other = await backend.open(), await backend.open()
    await store.create("/p")
    assert await store.children_from("/p") == []
    names = ["a", "a%20b", "a-b", "a0", "b", "\u00e9", "\u4e2d"]
    for name in reversed(names):
        await store.create(f"/p/{name}")
    await store.create("/p/a/deeper")
    await store.create("/pa")
    await other.sync("/p")
    assert await other.children_from("/p") == names
    assert await other.children_from("/p", limit=2) == names[:2]
    assert await other.children_from("/p", "a-b", 2) == ["a-b", "a0"]
    assert await other.children_from("/p", "a-b\0", 2) == ["a0", "b"]
    assert await other.children_from("/p", "a1") == names[4:]
    assert await other.children_from("/p", "\u4e2d\0") == []
    await store.delete("/p/a-b")
    await other.sync("/p")
    assert await other.children_from("/p", "a%", 2) == ["a%20b", "a0"]
    with pytest.raises(NoNodeError):
        await store.children_from("/missing")
    with pytest.raises(InvalidPathError):
        await store.children_from("p")


async def test_pages_follow_each_other_to_the_last_child(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await backend.open()
    await store.create("/p")
    names = [f"n{number:02}" for number in range(25)]
    await store.multi([Create(f"/p/{name}") for name in names])
    whole = store.children_from
    sizes: list[int] = []

    async def small(path: str, start: str = "", limit: int = 10) -> list[str]:
        page = await whole(path, start, min(limit, 10))
        sizes.append(len(page))
        return page

    monkeypatch.setattr(store, "children_from", small)
    assert [name async for page in child_pages(store, "/p") for name in page] == names
    assert sizes == [10, 10, 5, 0]
    assert await children_if_any(store, "/p") == sorted(names)
    assert await children_if_any(store, "/x") == []


async def test_sequences_grow_per_parent_and_are_never_used_again(backend: Backend) -> None:
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


async def test_ephemerals_live_as_long_as_their_session(backend: Backend) -> None:
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


async def test_multi_does_all(backend: Backend) -> None:
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
async def test_multi_does_nothing_when_one_fails(
    backend: Backend, failing: Operation, expected: type[MetadataError]
) -> None:
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
