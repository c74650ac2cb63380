"""The pure tree: the effects of a transaction, sessions and their deadlines, refusals, names in order."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.metadata.errors import InvalidPathError, MetadataError, NoNodeError, SessionExpiredError
from heliograph.metadata.session.watches import WatchEntry, WatchKind, WatchTable
from heliograph.metadata.store import Create, Delete, EventType, Operation, Set, WatchEvent
from heliograph.metadata.tree import ZnodeTree
from heliograph.metadata.znode import CHUNK_NAMES_MAX, SortedNames, ancestors_of, check_path, name_of, parent_of

ONE, TWO = 1, 2


def tree_with_sessions() -> ZnodeTree:
    tree = ZnodeTree()
    tree.open_session(ONE, "p", 100, 0)
    tree.open_session(TWO, "p", 200, 0)
    return tree


def test_a_transaction_tells_what_changed() -> None:
    tree = tree_with_sessions()
    created = tree.apply(ONE, [Create("/a"), Create("/a/b"), Set("/a", b"x")], 5)
    assert created.zxid == tree.zxid == 3
    assert created.events == [
        WatchEvent(EventType.CREATED, "/a"),
        WatchEvent(EventType.CHILD, "/"),
        WatchEvent(EventType.CREATED, "/a/b"),
        WatchEvent(EventType.CHILD, "/a"),
        WatchEvent(EventType.CHANGED, "/a"),
    ]
    assert tree.node("/a").modified_ms == 5
    deleted = tree.apply(ONE, [Delete("/a/b")], 6)
    assert deleted.events == [WatchEvent(EventType.DELETED, "/a/b"), WatchEvent(EventType.CHILD, "/a")]


def test_sessions_expire_only_when_their_time_is_up() -> None:
    tree = tree_with_sessions()
    assert ZnodeTree().first_deadline_ms() is None
    assert tree.first_deadline_ms() == 100
    assert tree.expired(99) == []
    assert tree.touch(ONE, 50)
    assert tree.expired(149) == []
    assert tree.expired(150) == [ONE]
    tree.postpone_expiry(1_000)
    assert tree.expired(1_149) == []
    assert tree.expired(1_200) == [ONE, TWO]
    tree.end_session(ONE, 0)
    assert not tree.touch(ONE, 0)
    with pytest.raises(SessionExpiredError):
        tree.end_session(ONE, 0)
    with pytest.raises(SessionExpiredError):
        tree.apply(ONE, [Create("/a")], 0)


def test_ending_a_session_deletes_its_ephemerals_in_one_transaction() -> None:
    tree = tree_with_sessions()
    tree.apply(ONE, [Create("/b", b"", True), Create("/a", b"", True), Create("/c")], 0)
    tree.apply(TWO, [Create("/d", b"", True)], 0)
    before = tree.zxid
    ended = tree.end_session(ONE, 0)
    assert ended.zxid == before + 1
    assert [event.path for event in ended.events if event.type is EventType.DELETED] == ["/a", "/b"]
    assert ended.sessions == [ONE]
    assert tree.children("/") == ["c", "d"]


paths = st.sampled_from(["/", "/a", "/b", "/a/a", "/a/b", "/a/b/c"])
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, paths, st.just(b""), st.booleans(), st.booleans()),
    st.builds(Set, paths, st.just(b"x"), st.integers(-1, 1)),
    st.builds(Delete, paths, st.integers(-1, 1)),
)


@given(st.lists(st.lists(operations, max_size=4), max_size=12), st.lists(operations, max_size=6))
def test_a_failed_transaction_leaves_no_trace(before: list[list[Operation]], failing: list[Operation]) -> None:
    tree = tree_with_sessions()
    for several in before:
        try:
            tree.apply(ONE, several, 0)
        except MetadataError:
            continue
    kept = copy.deepcopy((tree.zxid, tree.nodes, tree.sessions))
    with pytest.raises(MetadataError):
        tree.apply(ONE, [*failing, Delete("/")], 0)
    assert (tree.zxid, tree.nodes, tree.sessions) == kept


def test_looking_at_nodes() -> None:
    tree = tree_with_sessions()
    assert tree.find("/a") is None
    with pytest.raises(NoNodeError):
        tree.node("/a")
    with pytest.raises(InvalidPathError):
        tree.find("a")
    with pytest.raises(InvalidPathError):
        tree.children("/a/")


def test_parts_of_paths() -> None:
    check_path("/")
    assert [parent_of(path) for path in ("/a", "/a/b")] == ["/", "/a"]
    assert name_of("/a/b") == "b"
    assert ancestors_of("/a/b/c") == ["/a", "/a/b"]
    assert ancestors_of("/a") == []


@dataclass(eq=False, slots=True)
class NamedWatch(WatchEntry):
    name: str


def test_the_watch_table_fires_each_kind_as_it_should() -> None:
    table: WatchTable[NamedWatch] = WatchTable()
    table.add(NamedWatch(WatchKind.DATA, "/a", "data"))
    table.add(NamedWatch(WatchKind.CHILD, "/a", "child"))
    table.add(NamedWatch(WatchKind.RECURSIVE, "/", "root"))
    removed = table.add(NamedWatch(WatchKind.RECURSIVE, "/a", "removed"))
    table.remove(removed)
    table.remove(removed)
    assert len(table) == 3

    def fire(kind: EventType, path: str) -> list[str]:
        return [watch.name for watch in table.fire(WatchEvent(kind, path))]

    assert fire(EventType.CHILD, "/a") == ["child"]
    assert fire(EventType.CHILD, "/a") == []
    table.add(NamedWatch(WatchKind.CHILD, "/a", "child"))
    assert fire(EventType.DELETED, "/a") == ["data", "child", "root"]
    assert fire(EventType.CREATED, "/a/b") == ["root"]
    assert len(table) == 1


def test_names_are_sorted_whatever_order_they_come_and_go_in() -> None:
    source = random.Random(7)
    names, known = SortedNames(), set[str]()
    for _ in range(20_000):
        name = f"{source.randrange(6_000)}"
        if name in known:
            names.remove(name)
            known.discard(name)
        else:
            names.add(name)
            known.add(name)
        assert len(names) == len(known)
    ordered = sorted(known)
    assert list(names) == ordered
    assert all(0 < len(chunk) <= CHUNK_NAMES_MAX for chunk in names._chunks)
    assert len(names._chunks) > 2
    for start in ("", "0", "3", "5999", "5999\0", "x", ordered[10], ordered[-1]):
        expected = [name for name in ordered if name >= start]
        assert list(names.at_or_after(start))[:5] == expected[:5]
        assert list(names.at_or_after(start)) == expected
    for name in ordered:
        names.remove(name)
    assert list(names) == []
    assert list(names.at_or_after("")) == []


def test_chunks_are_full_where_names_come_in_order() -> None:
    names = SortedNames()
    for number in range(10 * CHUNK_NAMES_MAX):
        names.add(f"{number:06}")
    assert len(names._chunks) == 10
