"""The revisions of every node below a recursive watch, so that a gap in etcd's history can be bridged. No I/O.

etcd keeps the history of changes for a limited time. A session that was cut off and finds that part compacted reads the
nodes as they are and compares them with the cached ones. Without the cache, a deletion would go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.metadata.backends.etcd.wire.keys import depth_of
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions that created a node, last set its value and, if it matters, last changed its children."""

    czxid: int
    mzxid: int
    pzxid: int = 0


class CachedNodes:
    """The nodes at and below the watched roots, without their values."""

    def __init__(self) -> None:
        self._roots: Counter[str] = Counter()
        self._nodes: dict[str, Revisions] = {}

    @property
    def roots(self) -> list[str]:
        """The watched paths that lie below no other watched path."""
        return [root for root in self._roots if root == ROOT or not self._covers(parent_of(root))]

    def cover(self, root: str, nodes: Mapping[str, Revisions]) -> None:
        """Cache the nodes at ``root`` and below; ``nodes`` are the present ones."""
        assert all(is_within(path, root) for path in nodes), "the nodes are at the root and below"
        self._roots[root] += 1
        for path in [path for path in self._nodes if is_within(path, root)]:
            del self._nodes[path]
        self._nodes.update(nodes)

    def uncover(self, root: str) -> None:
        """Undo one ``cover``."""
        assert self._roots[root] > 0, "only covered keys are uncovered"
        self._roots[root] -= 1
        if self._roots[root] == 0:
            del self._roots[root]
            self._nodes = {path: node for path, node in self._nodes.items() if self._covers(path)}

    def apply(self, path: str, revisions: Revisions | None, changed_at: int) -> None:
        """Apply a change; None: the node was deleted. A change older than the cached node is ignored."""
        if not self._roots or not self._covers(path):
            return
        known = self._nodes.get(path)
        if known is not None and known.mzxid > changed_at:
            return
        if revisions is None:
            self._nodes.pop(path, None)
        else:
            self._nodes[path] = revisions

    def replace(self, now: Mapping[str, Revisions]) -> list[WatchEvent]:
        """Replace the cached nodes by those of a scan.

        Return the events that lead from the old nodes to the new ones.
        """
        before, self._nodes = self._nodes, dict(now)
        events = [WatchEvent(EventType.DELETED, path) for path in _deepest_first(before) if _is_gone(before, now, path)]
        for path in sorted(now, key=depth_of):
            if path not in before or _is_gone(before, now, path):
                events.append(WatchEvent(EventType.CREATED, path))
            elif before[path].mzxid != now[path].mzxid:
                events.append(WatchEvent(EventType.CHANGED, path))
        return events

    def _covers(self, path: str) -> bool:
        while path not in self._roots:
            if path == ROOT:
                return False
            path = parent_of(path)
        return True


def is_within(path: str, root: str) -> bool:
    """Return whether ``path`` is ``root`` or lies below it."""
    return path == root or root == ROOT or path.startswith(f"{root}/")


def _deepest_first(nodes: Mapping[str, Revisions]) -> list[str]:
    return sorted(nodes, key=depth_of, reverse=True)


def _is_gone(before: Mapping[str, Revisions], now: Mapping[str, Revisions], path: str) -> bool:
    return path not in now or now[path].czxid != before[path].czxid
