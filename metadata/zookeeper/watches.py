"""The standing watches of one session, and what it takes to set them again.

ZooKeeper keeps one watch per session, kind and path and tells events by path; who is told of one is decided here. Up
to 3.8 a server keeps one *mode* per session and path: a one-shot watch set on the very path of a recursive one turns
that into a one-shot too. So while a recursive watch stands on a path, no other is set there with the server, and the
one-shot ones live off the events of the recursive one, which tells all that they wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from metadata.store import EventType, Stat, Watcher, WatchEvent
from metadata.watches import NO_NODE_ZXID, WatchEntry, WatchKind, WatchTable, missed_event
from metadata.znode import ROOT, parent_of


@dataclass(slots=True, eq=False)
class Standing:
    """A watcher and what its owner knew of the node when it was set (NO_NODE_ZXID: that there was none)."""

    watcher: Watcher
    czxid: int
    zxid: int
    is_cancelled: bool = False


Entry = WatchEntry[Standing]


class StandingWatches:
    """All watches of one session."""

    def __init__(self) -> None:
        self._table: WatchTable[Standing] = WatchTable()
        self._entries: dict[Entry, None] = {}
        self._recursive: Counter[str] = Counter()  # paths on which a recursive watch stands, or was just asked for

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def is_recursive(self, path: str) -> bool:
        """Whether a recursive watch stands on exactly this path."""
        return self._recursive[path] > 0

    def expect_recursive(self, path: str) -> None:
        """A recursive watch on the path is being asked for."""
        self._recursive[path] += 1

    def forget_recursive(self, path: str) -> bool:
        """Undo one ``expect_recursive``; whether it was the last of its path."""
        self._recursive[path] -= 1
        if self._recursive[path] <= 0:
            del self._recursive[path]
            return True
        return False

    def add(self, kind: WatchKind, path: str, watcher: Watcher, stat: Stat | None) -> Entry:
        """A watch that stands from now on; ``stat`` is the node's, None when there is none."""
        if stat is None:
            standing = Standing(watcher, NO_NODE_ZXID, NO_NODE_ZXID)
        else:
            standing = Standing(watcher, stat.czxid, stat.pzxid if kind is WatchKind.CHILD else stat.mzxid)
        entry = self._table.add(kind, path, standing)
        self._entries[entry] = None
        return entry

    def remove(self, entry: Entry) -> bool:
        """Take a watch away; False when it has fired or was removed already."""
        entry.owner.is_cancelled = True
        self._table.remove(entry)
        return self._entries.pop(entry, False) is None

    def retire(self, entry: Entry) -> None:
        """A one-shot watch is about to be told of what it missed."""
        self._table.remove(entry)
        self._entries.pop(entry, None)

    def fire(self, event: WatchEvent) -> list[tuple[Entry, WatchEvent]]:
        """Who is to be told of what; those that fire once are gone."""
        told = [(entry, event) for entry in self._table.fire(event)]
        if event.type in (EventType.CREATED, EventType.DELETED) and event.path != ROOT:
            parent = parent_of(event.path)
            if self.is_recursive(parent):
                child_event = WatchEvent(EventType.CHILD, parent)
                told += [(entry, child_event) for entry in self._table.fire(child_event)]
        for entry, _ in told:
            if entry.kind is not WatchKind.RECURSIVE:
                self._entries.pop(entry, None)
        return told

    def missed(self, entry: Entry, stat: Stat | None) -> WatchEvent | None:
        """What a one-shot watch has missed, now that its node is known to be as ``stat`` says."""
        kind = missed_event(entry.kind, stat, entry.owner.czxid, entry.owner.zxid)
        return None if kind is None else WatchEvent(kind, entry.path)

    def clear(self) -> None:
        """Forget all: the session is over."""
        for entry in self._entries:
            entry.owner.is_cancelled = True
        self._entries.clear()
        self._recursive.clear()
        self._table = WatchTable()
