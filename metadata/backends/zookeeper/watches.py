"""The standing watches of one session, and which of them are set with the server.

ZooKeeper keeps one watch per session, kind and path and tells events by path; who is told of one is decided here. Up
to 3.8 a server keeps one *mode* per session and path: a one-shot watch set on the very path of a recursive one turns
that into a one-shot too. So while a recursive watch stands on a path, no other is set there with the server, and the
one-shot watches of that path are told of the events of the recursive one, which are all that they wait for. No I/O
besides the calls of watchers.
"""

from __future__ import annotations

from collections import Counter

from typing_extensions import override

from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of


class ZooKeeperWatches(StandingWatches[StandingWatch]):
    """All watches of one session."""

    def __init__(self) -> None:
        super().__init__()
        self._recursive: Counter[str] = Counter()  # paths on which a recursive watch stands, or was just asked for

    def is_recursive(self, path: str) -> bool:
        """Return whether a recursive watch stands on exactly this path."""
        return self._recursive[path] > 0

    def expect_recursive(self, path: str) -> None:
        """Note that a recursive watch on the path is being asked for."""
        self._recursive[path] += 1

    def forget_recursive(self, path: str) -> bool:
        """Undo one ``expect_recursive``. Return whether it was the last of its path."""
        assert self._recursive[path] > 0, "a recursive watch was asked for"
        self._recursive[path] -= 1
        if self._recursive[path] == 0:
            del self._recursive[path]
            return True
        return False

    def told_of(self, event: WatchEvent) -> list[tuple[StandingWatch, WatchEvent]]:
        """Return which watches are to be told of what when the server tells of an event."""
        told = [(watch, event) for watch in self.matching(event)]
        if event.type in (EventType.CREATED, EventType.DELETED) and event.path != ROOT:
            parent = parent_of(event.path)
            if self.is_recursive(parent):
                child_event = WatchEvent(EventType.CHILD, parent)
                told += [(watch, child_event) for watch in self.matching(child_event)]
        return told

    @override
    def clear(self) -> None:
        super().clear()
        self._recursive.clear()
