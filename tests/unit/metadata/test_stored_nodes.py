"""Nodes that stay on the disk are those of a tree in memory, at a cost that does not grow with their number."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch

from heliograph.metadata.backends.embedded.limits import BLOCK_CACHE_BYTES, NODE_CACHE_BYTES
from heliograph.metadata.backends.embedded.server.index import INDEX_FAMILY, INDEX_STATE_KEY
from heliograph.metadata.backends.embedded.server.nodes import NotInMemory, StoredNodes
from heliograph.metadata.backends.embedded.server.record import (
    STATE_KEY,
    encode_node,
    encode_session,
    encode_state,
    node_key,
    session_key,
)
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.errors import MetadataError, RecordError
from heliograph.metadata.store import Create, Delete, Operation, Reap, Set
from heliograph.metadata.tree import TreeTransaction, ZnodeTree
from heliograph.metadata.znode import CONTAINER, Znode, ttl_kind

FULL = os.environ.get("FULL", "0") != "0"
SESSIONS = (1, 2)
NAMES = ("a", "b", "a!", "ä", "\U0000fdf0", "z")
KINDS = (0, 0, 0, CONTAINER, ttl_kind(50))


class Store:
    """A tree on the disk, written when the test says so."""

    def __init__(self, directory: Path, cache_bytes: int) -> None:
        self.storage = TreeStorage(directory)
        state = self.storage.load()
        self.is_rebuilt = state.is_rebuilt
        self.nodes = StoredNodes(self.storage, state.nodes, cache_bytes)
        self.tree = ZnodeTree(self.nodes, state.zxid, state.sessions)
        self._writing: tuple[list[tuple[bytes, bytes | None]], list[tuple[bytes, bytes | None]]] | None = None

    def step(self, source: random.Random) -> None:
        """Begin a write or end the one under way; before its end it may be on the disk already."""
        if self._writing is None:
            self._writing = self.nodes.begin_write(self.tree.zxid)
            records = self._writing[0]
            for number in SESSIONS:
                session = self.tree.sessions.get(number)
                records.append((session_key(number), encode_session(session_key(number), session) if session else None))
            records.append((STATE_KEY, encode_state(self.tree.zxid)))
            if source.random() < 0.5:
                return
        self.storage.write(*self._writing)
        if source.random() < 0.5:
            self.nodes.written()
            self._writing = None

    def settle(self, source: random.Random) -> None:
        while self._writing is not None:
            self.step(source)
        while True:
            self.step(source)
            if self._writing is None:
                break


def random_operation(source: random.Random, paths: list[str]) -> Operation:
    path = source.choice(paths)
    made = f"{'' if path == '/' else path}/{source.choice(NAMES)}"
    match source.randrange(6):
        case 0 | 1:
            return Create(made, bytes(source.randrange(40)), source.random() < 0.2, source.random() < 0.2)
        case 2:
            return Create(made, None, kind=source.choice(KINDS))
        case 3:
            return Set(path, b"x" * source.randrange(300), source.choice((-1, -1, 0)))
        case 4:
            return Delete(path)
        case _:
            return Reap(path)


def applied(tree: ZnodeTree, session: int, operations: list[Operation], wall_ms: int) -> TreeTransaction | str:
    try:
        return tree.apply(session, operations, wall_ms)
    except MetadataError as error:
        return f"{type(error).__name__} {error} {error.operation_index}"


def all_of(tree: ZnodeTree, path: str = "/") -> Iterator[tuple[str, Znode]]:
    yield path, tree.node(path)
    for name in tree.children(path):
        yield from all_of(tree, f"{'' if path == '/' else path}/{name}")


def same(stored: ZnodeTree, memory: ZnodeTree, now: int, source: random.Random, *, is_settled: bool) -> list[str]:
    """Compare two trees in all that can be asked of them. Return the paths of their nodes."""
    nodes = dict(all_of(memory))
    assert dict(all_of(stored)) == nodes
    assert (stored.zxid, len(stored.nodes)) == (memory.zxid, len(memory.nodes))
    for path in nodes:
        start, limit = source.choice(("", *NAMES, "a\0", "zz")), source.randrange(1, 4)
        assert stored.children_from(path, start, limit) == memory.children_from(path, start, limit)
    for session in SESSIONS:
        assert stored.nodes.ephemerals(session) == memory.nodes.ephemerals(session)
    due = memory.reapable(now, 100)
    assert set(stored.reapable(now, 100)) <= set(due), "nothing that is not due"
    if is_settled:
        assert stored.reapable(now, 100) == due
    return list(nodes)


@pytest.mark.parametrize("seed", range(4))
def test_the_disk_and_the_memory_are_the_same_tree(tmp_path: Path, seed: int) -> None:
    source, memory, now = random.Random(seed), ZnodeTree(), 0
    store = Store(tmp_path / "store", source.choice((0, 2_000, 1 << 20)))
    for tree in (memory, store.tree):
        for session in SESSIONS:
            tree.open_session(session, "p", 100, 0)
    paths = ["/"]
    for turn in range(160):
        now += source.randrange(10)
        session = source.choice(SESSIONS)
        if source.random() < 0.01:
            ended = [tree.end_session(session, now) for tree in (memory, store.tree)]
            assert ended[0] == ended[1]
            for tree in (memory, store.tree):
                tree.open_session(session, "p", 100, 0)
        several = [random_operation(source, paths) for _ in range(source.randrange(1, 4))]
        assert applied(store.tree, session, several, now) == applied(memory, session, several, now)
        if source.random() < 0.5:
            store.step(source)
        paths = same(store.tree, memory, now, source, is_settled=False)
        if turn % 40 == 39:
            store.settle(source)
            same(store.tree, memory, now, source, is_settled=True)
            assert not store.nodes._names, "what is written is kept on the disk alone"
            index = entries(store.storage)
            store.storage.close()
            if source.random() < 0.5:
                forget_index(tmp_path / "store", source)
            store = Store(tmp_path / "store", store.nodes._cache_bytes_max)
            assert entries(store.storage) == index, "an index that is made again is the one that was kept"
            same(store.tree, memory, now, source, is_settled=True)
    store.settle(source)
    store.storage.close()


def entries(storage: TreeStorage) -> dict[object, object]:
    return dict(storage._index.items())


def forget_index(directory: Path, source: random.Random) -> None:
    """Do as a release without an index does, or as one that knows of none and has written since."""
    database = Rdict(str(directory), Options(raw_mode=True))
    if source.random() < 0.5:
        database.drop_column_family(INDEX_FAMILY)
    else:
        index = database.get_column_family(INDEX_FAMILY)
        del index[INDEX_STATE_KEY]
        index[b"c/\0stale"] = b""
        del index
    database.close()
    del database


TOPICS = 1_000_000 if FULL else 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the previous release with many nodes, which was opened once."""
    directory = tmp_path_factory.mktemp("large") / "store"
    database = Rdict(str(directory), Options(raw_mode=True))
    for path, creations in (("/", 1), ("/t", TOPICS)):
        database[node_key(path)] = encode_node(node_key(path), Znode(b"", 1, 1, 1, 0, creations, 0, 0, 0))
    for first in range(0, TOPICS, 10_000):
        batch = WriteBatch(raw_mode=True)
        for number in range(first, first + 10_000):
            key = node_key(f"/t/{number:06}")
            batch.put(key, encode_node(key, Znode(b"v" * 100, 1, 1, 1, 0, 0, 0, 0, 0)))
        database.write(batch)
    database[STATE_KEY] = encode_state(1)
    database.close()
    del database
    storage = TreeStorage(directory)
    assert storage.load().is_rebuilt
    storage.close()
    return directory


@pytest.mark.slow
def test_a_start_reads_a_few_keys_whatever_the_store_holds(large: Path) -> None:
    storage = TreeStorage(large)
    state = storage.load()
    assert (state.nodes, state.is_rebuilt) == (TOPICS + 2, False)
    assert storage.keys_read <= 3
    storage.close()


@pytest.mark.skipif(not FULL, reason="times and memory, of a million nodes: FULL=1")
def test_a_million_nodes_are_served_at_once_in_little_memory(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    storage = TreeStorage(large)
    nodes = StoredNodes(storage, storage.load().nodes)
    started = time.perf_counter() - began
    for number in random.Random(1).sample(range(TOPICS), 200_000):
        assert nodes.get(f"/t/{number:06}") is not None
    held = nodes.cache_bytes + storage.memory_bytes
    with capsys.disabled():
        print(f"\n{len(nodes)} nodes: started in {started:.3f} s; {held / 1e6:.0f} MB after reading 200,000")
    assert started < 2
    assert held < NODE_CACHE_BYTES + BLOCK_CACHE_BYTES + (20 << 20)
    storage.close()


@pytest.mark.slow
def test_a_page_costs_its_names_and_a_node_its_records(large: Path) -> None:
    storage = TreeStorage(large)
    tree = ZnodeTree(StoredNodes(storage, storage.load().nodes), 1)
    before = storage.keys_read
    assert tree.children_from("/t", "050000", 10) == [f"{number:06}" for number in range(50_000, 50_010)]
    assert storage.keys_read - before <= 2 + 15, "pages of 1, 2, 4 and 8 keys"
    before = storage.keys_read
    assert tree.node("/t").stat().num_children == TOPICS
    assert tree.node("/t/070000").value == b"v" * 100
    assert tree.reapable(1 << 40, 10) == []
    assert tree.nodes.ephemerals(1) == []
    assert storage.keys_read - before <= 2
    storage.close()


def test_nodes_in_use_have_a_bound(large: Path) -> None:  # I15
    storage = TreeStorage(large)
    nodes = StoredNodes(storage, storage.load().nodes, 50_000)
    for number in range(0, TOPICS, 100):
        assert nodes.get(f"/t/{number:06}") is not None
        assert nodes.cache_bytes <= 50_000
    assert len(nodes._cache) > 50
    storage.close()


def test_what_is_not_in_memory_is_said_and_read_by_a_thread(large: Path) -> None:
    storage = TreeStorage(large)
    nodes = StoredNodes(storage, storage.load().nodes)
    nodes.waits = False
    with pytest.raises(NotInMemory):
        nodes.get("/t/012345")
    storage.warm(["/t/012345", "/t/none"])
    assert nodes.get("/t/012345") is not None
    assert nodes.get("/t/none") is None
    storage.close()


def test_a_damaged_record_is_never_a_missing_one(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    value = encode_node(node_key("/a"), Znode(b"v", 1, 1, 1, 0, 0, 0, 0, 0))
    database[node_key("/a")] = value
    database[STATE_KEY] = encode_state(1)
    database.close()
    del database
    storage = TreeStorage(tmp_path)
    nodes = StoredNodes(storage, storage.load().nodes)
    storage.write([(node_key("/a"), value[:-1] + b"?")])
    for _ in range(2):
        with pytest.raises(RecordError, match="checksum"):
            nodes.get("/a")
    storage.close()


def test_an_index_that_was_made_survives_a_crash(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "store"), Options(raw_mode=True))
    for path in ("/a", "/a/b"):
        database[node_key(path)] = encode_node(node_key(path), Znode(b"v", 1, 1, 1, 0, 1, 0, 0, 0))
    database[STATE_KEY] = encode_state(1)
    database.close()
    del database
    storage = TreeStorage(tmp_path / "store")
    assert storage.load().is_rebuilt
    shutil.copytree(tmp_path / "store", tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK"))
    storage.close()
    again = TreeStorage(tmp_path / "killed")
    state = again.load()
    assert (state.nodes, state.is_rebuilt) == (3, False)
    tree = ZnodeTree(StoredNodes(again, state.nodes), 1)
    assert (tree.children("/"), tree.children("/a")) == (["a"], ["b"])
    again.close()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library does not count its memory")
def test_a_lookup_of_a_missing_node_leaves_no_memory_behind(tmp_path: Path) -> None:
    """Each creation of a node looks whether it is there: a store that lost 32 bytes each time grew by 30 MB an hour."""
    lookups = 10_000
    storage = TreeStorage(tmp_path)
    storage.load()
    storage.write([(node_key("/deleted"), b"x")])
    storage.write([(node_key("/deleted"), None)])
    for path in ("/none", "/deleted"):
        storage.lookup(path, waits=False)
        before = allocated_bytes()
        for _ in range(lookups):
            assert storage.lookup(path, waits=False) == (None, None)
        assert allocated_bytes() - before < 5 * lookups
    storage.close()


class Mallinfo2(ctypes.Structure):
    """What the C library counts of its memory."""

    _fields_ = (*((f"unused_{number}", ctypes.c_size_t) for number in range(7)), ("uordblks", ctypes.c_size_t),
                ("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))  # fmt: skip


def allocated_bytes() -> int:
    """Return the bytes in use of the C library's first arena, which is the main thread's."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    return int(mallinfo2().uordblks)
