"""The nodes of a tree, found by path, and the rules for paths and values (ZooKeeper's). No I/O.

``MemoryNodes`` holds all nodes in memory. The embedded server's ``StoredNodes`` holds the nodes in use, and the others
are on its disk.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol

from heliograph.base.errors import BadRequestError
from heliograph.metadata.errors import InvalidPathError, MetadataError, ValueTooLargeError
from heliograph.metadata.store import VALUE_BYTES_MAX, Create, Delete, Operation, Reap, Set, Stat

ROOT = "/"
CONTAINER = -(1 << 63)  # the kind of a container, which its stat shows as the ephemeral's owner, as ZooKeeper's does
CHUNK_NAMES_MAX = 1_024  # a chunk of names that grows above it is cut into two
TTL_MS_MAX = (1 << 40) - 1
_TTL_KIND = -(1 << 56)  # plus the time to live in milliseconds
# Control characters, surrogates, private use, specials, all beyond the basic plane; "." and ".."; empty parts.
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]|//|/\\.{1,2}(?:/|\\Z)",
)


@dataclass(slots=True)
class Znode:
    """A node. ``creations`` counts the children ever created and is the next sequence number.

    A node that is in ``Nodes`` never changes: a transaction replaces it by a changed copy.
    """

    value: bytes | None
    czxid: int
    mzxid: int
    pzxid: int
    version: int
    creations: int
    ephemeral_owner: int
    created_ms: int
    modified_ms: int
    child_count: int = 0  # 0 <= child_count <= creations

    @property
    def last_zxid(self) -> int:
        """The newest transaction that a reader of this node can see."""
        return max(self.mzxid, self.pzxid)

    @property
    def is_ephemeral(self) -> bool:
        return self.ephemeral_owner > 0

    def copy(self) -> Znode:
        return Znode(
            self.value, self.czxid, self.mzxid, self.pzxid, self.version, self.creations, self.ephemeral_owner,
            self.created_ms, self.modified_ms, self.child_count,
        )  # fmt: skip

    def stat(self) -> Stat:
        """Return the node's stat. ``cversion`` counts creations and deletions of children."""
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            version=self.version,
            cversion=2 * self.creations - self.child_count,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.value or b""),
            num_children=self.child_count,
            pzxid=self.pzxid,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
        )


def ttl_kind(ttl_ms: int) -> int:
    """Return the kind of a node with a time to live in milliseconds, 1 to TTL_MS_MAX."""
    assert 0 < ttl_ms <= TTL_MS_MAX, "a time to live has a range"
    return _TTL_KIND + ttl_ms


def ttl_ms_of(kind: int) -> int:
    """Return the time to live in a kind, in milliseconds; 0 for other kinds."""
    return kind - _TTL_KIND if _TTL_KIND < kind <= _TTL_KIND + TTL_MS_MAX else 0


def is_kind(number: int) -> bool:
    """Return whether a number is a kind of node and not the id of an ephemeral's session."""
    return number in (0, CONTAINER) or ttl_ms_of(number) > 0


def due_ms(stat: Stat) -> int | None:
    """Return the wall time from which a node may be reaped if nothing changes; None: never.

    An empty container that had children may be reaped at once, an empty node with a time to live after that time.
    """
    if stat.num_children:
        return None
    if stat.ephemeral_owner == CONTAINER:
        return 0 if stat.cversion > 0 else None
    ttl_ms = ttl_ms_of(stat.ephemeral_owner)
    return stat.modified_ms + ttl_ms + 1 if ttl_ms else None


def is_due(stat: Stat, wall_ms: int) -> bool:
    """Return whether a node may be reaped at a wall time."""
    due = due_ms(stat)
    return due is not None and due <= wall_ms


def check_path(path: str) -> None:
    """Raise InvalidPathError unless ``path`` may name a node."""
    if path != ROOT and (path[:1] != "/" or path[-1] == "/" or _FORBIDDEN.search(path)):
        raise InvalidPathError(f"{path!r} is not the path of a node", field="path")


def is_node_name(name: str) -> bool:
    """Return whether a name may be one part of a path."""
    return name != "" and "/" not in name and not _FORBIDDEN.search(f"/{name}")


def check_value(value: bytes | None) -> None:
    """Raise ValueTooLargeError unless a node may hold ``value``."""
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(
            f"a value of {len(value)} bytes is above the limit of {VALUE_BYTES_MAX}",
            field="value",
            limit=f"{VALUE_BYTES_MAX} bytes",
        )


def check_operation(operation: Operation, index: int | None = None) -> None:
    """Raise unless path and value of an operation are acceptable whatever the store holds.

    Args:
        index: the number of the operation in its ``multi``, for the error.

    Raises:
        InvalidPathError, ValueTooLargeError, BadRequestError (kind).
    """
    try:
        is_named_by_store = isinstance(operation, Create) and operation.sequence
        check_path(operation.path + "0" if is_named_by_store else operation.path)
        if isinstance(operation, Delete | Reap) and operation.path == ROOT:
            raise InvalidPathError("the root cannot be deleted", field="path")
        if isinstance(operation, Create | Set):
            check_value(operation.value)
        if isinstance(operation, Create) and (not is_kind(operation.kind) or (operation.kind and operation.ephemeral)):
            raise BadRequestError(f"{operation.kind} is not the kind of a node to create", field="kind")
    except MetadataError as error:
        error.operation_index = index
        raise


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def ancestors_of(path: str) -> list[str]:
    """Return the paths above ``path``, without the root, from the top down."""
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


Replaced = tuple[Znode | None, Znode | None]  # a node as it was and as it is; None: there is none


def new_root() -> Znode:
    """Return the root of a tree that was never changed."""
    return Znode(b"", 0, 0, 0, 0, 0, 0, 0, 0)


class Nodes(Protocol):
    """All nodes of one tree, with the orders in which they are listed. The root is always among them."""

    def __len__(self) -> int:
        """Return the number of nodes."""

    def get(self, path: str) -> Znode | None:
        """Return the node, which never changes, or None.

        Raises:
            InvalidPathError: no node can have that path.
        """

    def replace(self, changes: Mapping[str, Replaced]) -> None:
        """Replace nodes, by path, in one step."""

    def names(self, parent: str, start: str) -> Iterator[str]:
        """Return the names of the children at or after ``start``, in order, as they are at the call."""

    def ephemerals(self, session_id: int) -> list[str]:
        """Return the sorted paths of a session's ephemerals."""

    def due(self, wall_ms: int, count_max: int) -> list[str]:
        """Return at most ``count_max`` paths of nodes that may be reaped at ``wall_ms`` (``is_due``)."""


class SortedNames:
    """A sorted set of names. Adding, removing and beginning a page take a few microseconds, however many there are.

    The chunks are lists, neither empty nor longer than CHUNK_NAMES_MAX; all names in a chunk are below those in the
    next.
    """

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedNames) and list(self) == list(other)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._chunks)

    def add(self, name: str) -> None:
        """Add a name, which must not be in the set."""
        self._count += 1
        if not self._chunks:
            self._chunks.append([name])
            return
        at = min(self._chunk_at(name), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, name)
        if len(chunk) > CHUNK_NAMES_MAX:
            middle = len(chunk) // 2 if at + 1 < len(self._chunks) else CHUNK_NAMES_MAX  # names often come in order
            self._chunks.insert(at + 1, chunk[middle:])
            del chunk[middle:]

    def remove(self, name: str) -> None:
        """Remove a name, which must be in the set."""
        at = self._chunk_at(name)
        assert at < len(self._chunks), "the name is in the set"
        chunk = self._chunks[at]
        position = bisect_left(chunk, name)
        assert chunk[position] == name, "the name is in the set"
        del chunk[position]
        self._count -= 1
        if not chunk:
            del self._chunks[at]

    def at_or_after(self, start: str) -> Iterator[str]:
        """Return the names at or after ``start``, in order."""
        at = self._chunk_at(start)
        if at == len(self._chunks):
            return iter(())
        first = self._chunks[at]
        rest = chain.from_iterable(islice(self._chunks, at + 1, None))
        return chain(islice(first, bisect_left(first, start), None), rest)

    def _chunk_at(self, name: str) -> int:
        """Return the index of the first chunk whose last name is not below ``name``."""
        return bisect_left(self._chunks, name, key=lambda chunk: chunk[-1])


@dataclass(slots=True)
class MemoryNodes:
    """Nodes that are all in memory."""

    nodes: dict[str, Znode] = field(default_factory=lambda: {ROOT: new_root()})
    _children: dict[str, SortedNames] = field(default_factory=dict)  # by parent, of those that have some
    _ephemerals: dict[int, set[str]] = field(default_factory=dict)  # by session, of those that have some
    _kinds: set[str] = field(default_factory=set)  # the paths of containers and of nodes with a time to live

    def __len__(self) -> int:
        return len(self.nodes)

    def get(self, path: str) -> Znode | None:
        node = self.nodes.get(path)
        if node is None:
            check_path(path)
        return node

    def replace(self, changes: Mapping[str, Replaced]) -> None:
        for path, (old, new) in changes.items():
            if old is not None and (new is None or new.ephemeral_owner != old.ephemeral_owner):
                self._unlist(path, old.ephemeral_owner)
            if new is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = new
                if new.ephemeral_owner > 0:
                    self._ephemerals.setdefault(new.ephemeral_owner, set()).add(path)
                elif new.ephemeral_owner:
                    self._kinds.add(path)
            if old is None and new is not None:
                self._children.setdefault(parent_of(path), SortedNames()).add(name_of(path))
            elif old is not None and new is None:
                names = self._children[parent_of(path)]
                names.remove(name_of(path))
                if not names:
                    del self._children[parent_of(path)]

    def names(self, parent: str, start: str) -> Iterator[str]:
        names = self._children.get(parent)
        return iter(()) if names is None else names.at_or_after(start)

    def ephemerals(self, session_id: int) -> list[str]:
        return sorted(self._ephemerals.get(session_id, ()))

    def due(self, wall_ms: int, count_max: int) -> list[str]:
        due = (path for path in self._kinds if is_due(self.nodes[path].stat(), wall_ms))
        return sorted(islice(due, count_max))

    def _unlist(self, path: str, owner: int) -> None:
        if owner > 0:
            self._ephemerals[owner].remove(path)
            if not self._ephemerals[owner]:
                del self._ephemerals[owner]
        elif owner:
            self._kinds.remove(path)
