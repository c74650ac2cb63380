"""One node of the tree in memory, and the rules for paths and values (ZooKeeper's). No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heliograph.base.errors import BadRequestError
from heliograph.metadata.errors import InvalidPathError, MetadataError, ValueTooLargeError
from heliograph.metadata.store import VALUE_BYTES_MAX, Create, Delete, Operation, Reap, Set, Stat

ROOT = "/"
CONTAINER = -(1 << 63)  # the kind of a container, which its stat shows as the ephemeral's owner, as ZooKeeper's does
TTL_MS_MAX = (1 << 40) - 1
_TTL_KIND = -(1 << 56)  # plus the time to live in milliseconds
# Control characters, surrogates, private use, specials, all beyond the basic plane; "." and ".."; empty parts.
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]|//|/\\.{1,2}(?:/|\\Z)",
)


@dataclass(slots=True)
class Znode:
    """A node. ``creations`` counts the children ever created; the next sequence gets that number.

    ``children`` is None until the first child, which keeps leaves small.
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
    children: set[str] | None = None

    @property
    def last_zxid(self) -> int:
        """The newest transaction that a reader of this node can see."""
        return max(self.mzxid, self.pzxid)

    @property
    def is_ephemeral(self) -> bool:
        return self.ephemeral_owner > 0

    def stat(self) -> Stat:
        """Return the node's stat. ``cversion`` counts creations and deletions of children."""
        count = len(self.children) if self.children else 0
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            version=self.version,
            cversion=2 * self.creations - count,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.value or b""),
            num_children=count,
            pzxid=self.pzxid,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
        )


def ttl_kind(ttl_ms: int) -> int:
    """Return the kind of a node with a time to live in milliseconds, 1 to TTL_MS_MAX."""
    assert 0 < ttl_ms <= TTL_MS_MAX, "a time to live has a range"
    return _TTL_KIND + ttl_ms


def ttl_ms_of(kind: int) -> int:
    """Return the time to live that a kind says, in milliseconds; 0 for any other kind."""
    return kind - _TTL_KIND if _TTL_KIND < kind <= _TTL_KIND + TTL_MS_MAX else 0


def is_kind(number: int) -> bool:
    """Return whether a number is a kind of node, rather than the id of an ephemeral's session."""
    return number in (0, CONTAINER) or ttl_ms_of(number) > 0


def is_due(stat: Stat, wall_ms: int) -> bool:
    """Return whether a node may be reaped: an empty container that had children, or a node that outlived its time."""
    if stat.num_children:
        return False
    if stat.ephemeral_owner == CONTAINER:
        return stat.cversion > 0
    ttl_ms = ttl_ms_of(stat.ephemeral_owner)
    return ttl_ms > 0 and wall_ms - stat.modified_ms > ttl_ms


def check_path(path: str) -> None:
    """Raise InvalidPathError unless ``path`` may name a node."""
    if path == ROOT:
        return
    if not path.startswith("/") or path.endswith("/") or _FORBIDDEN.search(path):
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
    """Raise unless the store accepts path and value of an operation, whatever it holds.

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
