"""Paths of nodes <-> keys of etcd; the layout is in docs/formats-metadata.md. No I/O.

Everything of one store begins with its prefix and a colon, so a prefix and a longer one that begins with it share no
key. Nodes stand in one range (the tree) and sessions right before it, so the range of one watcher holds both.
"""

from __future__ import annotations

from heliograph.metadata.backends.etcd.wire.limits import DEPTH_MAX
from heliograph.metadata.errors import InvalidPathError
from heliograph.metadata.znode import ROOT


class Keys:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        base = prefix.encode() + b":"
        self.layout = base + b"v"
        self._session = base + b"s"
        self.tree = base + b"t"
        self.tree_end = base + b"u"
        self.barrier = self.tree + b"b"
        self.events = self.tree + b"e"
        self._family = self.tree + b"c"
        self._node = self.tree + b"n"
        self.reaped = base + b"x"
        self._path_at = len(self._node) + 4

    def reaped_node(self, path: str) -> bytes:
        """Return the key that lists a container or a node with a time to live; it lies outside the tree."""
        return self.reaped + path.encode()

    def session(self, session_id: int) -> bytes:
        return self._session + b"%016x" % session_id

    def node(self, path: str) -> bytes:
        """Return the key of a node.

        Raises:
            InvalidPathError: more names than the keys have room for.
        """
        return self._at_depth(depth_of(path)) + path.encode()

    def family(self, path: str) -> bytes:
        """Return the key of a node's family: the record of its children, missing before the first."""
        return self._family + path.encode()

    def children(self, path: str) -> tuple[bytes, bytes]:
        """Return the first key and the end of the range of a node's children."""
        start = self._at_depth(depth_of(path) + 1) + (b"/" if path == ROOT else path.encode() + b"/")
        return start, after(start)

    def below(self, path: str, depth: int) -> tuple[bytes, bytes]:
        """Return the first key and the end of the range of the nodes below ``path`` that have ``depth`` names."""
        start = self._at_depth(depth) + (b"/" if path == ROOT else path.encode() + b"/")
        return start, after(start)

    def path_of(self, key: bytes) -> str | None:
        """Return the path of a node's key; None for any other key."""
        return key[self._path_at :].decode() if key.startswith(self._node) else None

    def _at_depth(self, depth: int) -> bytes:
        if depth > DEPTH_MAX:
            raise InvalidPathError(f"a path has at most {DEPTH_MAX} names", field="path", limit=f"{DEPTH_MAX} names")
        return self._node + b"%04x" % depth


def depth_of(path: str) -> int:
    return 0 if path == ROOT else path.count("/")


def after(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with ``prefix``, which ends with an ASCII character."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
