"""The revisions of every node below a recursive watch, so that a gap in etcd's history can be bridged. No I/O.

etcd keeps the history of changes for a while only. A session that was cut off and finds that what it missed is gone
reads the nodes as they are and compares: without a memory of what there was, a deletion could not be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from metadata.etcd.keys import depth_of
from metadata.store import EventType, WatchEvent
from metadata.znode import ROOT, parent_of


@dataclass(frozen=True, slots=True)
class Revisions:
    """When a node was created, when its value was set last and, where it matters, when its children changed."""

    czxid: int
    mzxid: int
    pzxid: int = 0


class Shadow:
    """What there is below the watched roots."""

    def __init__(self) -> None:
        self._roots: Counter[str] = Counter()
        self._nodes: dict[str, Revisions] = {}

    @property
    def roots(self) -> list[str]:
        """The watched paths that lie below no other watched path."""
        return [root for root in self._roots if root == ROOT or not self._covers(parent_of(root))]

    def cover(self, root: str, nodes: Mapping[str, Revisions]) -> None:
        """Keep what is at ``root`` and below from now on; ``nodes`` is what there is."""
        self._roots[root] += 1
        for path in [path for path in self._nodes if is_within(path, root)]:
            del self._nodes[path]
        self._nodes.update(nodes)

    def uncover(self, root: str) -> None:
        """Undo one ``cover``."""
        self._roots[root] -= 1
        if self._roots[root] <= 0:
            del self._roots[root]
            self._nodes = {path: node for path, node in self._nodes.items() if self._covers(path)}

    def apply(self, path: str, revisions: Revisions | None, changed_at: int) -> None:
        """Follow a change; None: the node was deleted. What is older than what is known is passed over."""
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
        """Take ``now`` for what there is below all roots: the events that lead there from what there was."""
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
    """Whether ``path`` is ``root`` or lies below it."""
    return path == root or root == ROOT or path.startswith(f"{root}/")


def _deepest_first(nodes: Mapping[str, Revisions]) -> list[str]:
    return sorted(nodes, key=depth_of, reverse=True)


def _is_gone(before: Mapping[str, Revisions], now: Mapping[str, Revisions], path: str) -> bool:
    return path not in now or now[path].czxid != before[path].czxid
