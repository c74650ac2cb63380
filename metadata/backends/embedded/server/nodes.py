"""The nodes of the embedded server: in memory until they are on the disk, in a cache while in use, else in RocksDB.

Everything here runs on the event loop, and blocks it for microseconds: a node that RocksDB has in memory takes about 6,
a page of 1,000 names about 1,000. If RocksDB would have to read its disk for a node, NotInMemory is raised; the service
then lets a thread read the node and begins again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from heliograph.metadata.backends.embedded.limits import NODE_CACHE_BYTES, NODE_OVERHEAD_BYTES
from heliograph.metadata.backends.embedded.server.index import (
    INDEX_STATE_KEY,
    IndexChange,
    children_prefix,
    count_key,
    decode_count,
    due_key,
    encode_index_state,
    ephemerals_prefix,
    index_changes,
    numbered_path,
)
from heliograph.metadata.backends.embedded.server.record import decode_node, encode_node, node_key
from heliograph.metadata.znode import ROOT, Replaced, Znode, check_path, is_due, name_of, new_root, parent_of

Change = tuple[bytes, bytes | None]  # key, and value or None to delete


class NotInMemory(Exception):
    """The record of a node would have to be read from the disk. This error never leaves the server."""


class NodeStorage(Protocol):
    """The disk below the nodes."""

    def lookup(self, path: str, *, waits: bool) -> tuple[bytes | None, bytes | None]:
        """Return the records of a node and of its number of children; None for a missing record.

        Raises:
            NotInMemory: the records would have to be read from the disk, and the caller does not wait for that.
            ResourceError: the disk failed.
        """

    def key_pages(self, prefix: bytes, start: bytes) -> Iterator[list[bytes]]:
        """Return the index's keys that begin with ``prefix``, from ``start`` on, in order, as they are at the call.

        Raises:
            ResourceError: the disk failed; also while the pages are taken.
        """


class StoredNodes:
    """The nodes of one store (``Nodes``)."""

    def __init__(self, storage: NodeStorage, count: int, cache_bytes: int = NODE_CACHE_BYTES) -> None:
        self._storage = storage
        self._count = count
        self._changed: dict[str, Replaced] = {}  # since the last write began: as that write left it, and as it is
        self._writing: dict[str, Znode | None] = {}  # in the write under way
        self._names: dict[str, dict[str, bool]] = {}  # by parent: names in these two, whether they were made or deleted
        self._cache: OrderedDict[str, Znode] = OrderedDict()  # as on the disk; what was used last is last
        self._cache_bytes_max = cache_bytes
        self.cache_bytes = 0  # of the cache, which is cut to its bound at the end of every get
        self.waits = True  # whether a lookup may wait for the disk

    def __len__(self) -> int:
        return self._count

    def get(self, path: str) -> Znode | None:
        """Return the node, or None.

        Raises:
            InvalidPathError.
            NotInMemory: unless ``waits``.
            RecordError: its record is damaged.
            ResourceError: the disk failed.
        """
        changed = self._changed.get(path)
        if changed is not None:
            return changed[1]
        if path in self._writing:
            return self._writing[path]
        node = self._cache.get(path)
        if node is not None:
            self._cache.move_to_end(path)
            return node
        node = self._read(path)
        if node is not None:
            self._keep(path, node)
        return node

    def replace(self, changes: Mapping[str, Replaced]) -> None:
        for path, (old, new) in changes.items():
            earlier = self._changed.get(path)
            self._changed[path] = (old if earlier is None else earlier[0]), new
            if self._cache.pop(path, None) is not None:
                assert old is not None, "the cache holds nodes"
                self.cache_bytes -= _bytes_of(path, old)
            if (old is None) is not (new is None):
                self._count += 1 if old is None else -1
                self._names.setdefault(parent_of(path), {})[name_of(path)] = old is None

    def names(self, parent: str, start: str) -> Iterator[str]:
        prefix = children_prefix(parent)
        skipped = len(prefix)
        pages = self._storage.key_pages(prefix, prefix + start.encode("utf-8", "surrogatepass"))
        stored = chain.from_iterable([key[skipped:].decode() for key in page] for page in pages)
        unwritten = self._names.get(parent)
        if not unwritten:
            return stored
        known = dict(unwritten)
        made = sorted(name for name, is_made in known.items() if is_made and name >= start)
        return heapq.merge((name for name in stored if name not in known), made)

    def ephemerals(self, session_id: int) -> list[str]:
        found = set(self._stored_ephemerals(session_id))
        for path, node in self._unwritten():
            if node is not None and node.ephemeral_owner == session_id:
                found.add(path)
            else:
                found.discard(path)
        return sorted(found)

    def due(self, wall_ms: int, count_max: int) -> list[str]:
        """Return paths of nodes that may be reaped, except those that changed since the last write and are due now."""
        unwritten, end, found = dict(self._unwritten()), due_key(wall_ms + 1), list[str]()
        for key in chain.from_iterable(self._storage.key_pages(end[:1], end[:1])):
            if key >= end or len(found) == count_max:
                break
            path = numbered_path(key)
            node = unwritten.get(path)
            if path not in unwritten or (node is not None and is_due(node.stat(), wall_ms)):
                found.append(path)
        return sorted(found)

    def begin_write(self, zxid: int) -> tuple[list[Change], list[IndexChange]]:
        """Return the records and the index's changes of all nodes that changed since the last write."""
        assert not self._writing, "one write at a time"
        records: list[Change] = []
        index: list[IndexChange] = []
        for path, replaced in self._changed.items():
            old, new = replaced
            self._writing[path] = new
            key = node_key(path)
            if new is not None:
                records.append((key, encode_node(key, new)))
            elif old is not None:
                records.append((key, None))
            index += index_changes(path, replaced)
        self._changed = {}
        index.append((INDEX_STATE_KEY, encode_index_state(zxid, self._count)))
        return records, index

    def written(self) -> None:
        """Note that the write under way is on the disk."""
        for path, node in self._writing.items():
            if path not in self._changed:
                if node is not None:
                    self._keep(path, node)
                if self._names:
                    names = self._names.get(parent_of(path))
                    if names is not None and names.pop(name_of(path), None) is not None and not names:
                        del self._names[parent_of(path)]
        self._writing = {}

    def _stored_ephemerals(self, session_id: int) -> Iterator[str]:
        prefix = ephemerals_prefix(session_id)
        return map(numbered_path, chain.from_iterable(self._storage.key_pages(prefix, prefix)))

    def _unwritten(self) -> Iterable[tuple[str, Znode | None]]:
        yield from self._writing.items()
        for path, (_, node) in self._changed.items():
            yield path, node

    def _read(self, path: str) -> Znode | None:
        check_path(path)  # before it becomes part of a key
        record, count = self._storage.lookup(path, waits=self.waits)
        if record is not None:
            node = decode_node(node_key(path), record)[1]
        elif path == ROOT:
            node = new_root()
        else:
            return None
        if count is not None:
            node.child_count = decode_count(count_key(path), count)
        return node

    def _keep(self, path: str, node: Znode) -> None:
        """Put a node into the cache, and evict the least recently used nodes above its bound."""
        assert path not in self._cache, "a changed node leaves the cache"
        self._cache[path] = node
        self.cache_bytes += _bytes_of(path, node)
        while self.cache_bytes > self._cache_bytes_max:  # I15
            self.cache_bytes -= _bytes_of(*self._cache.popitem(last=False))


def _bytes_of(path: str, node: Znode) -> int:
    return NODE_OVERHEAD_BYTES + len(path) + len(node.value or b"")
