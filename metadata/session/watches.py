"""Tables of watches, which choose the watches that are told of an event. No I/O.

A data watch fires once at CREATED, CHANGED or DELETED of its path (``get`` and ``exists`` leave it). A child watch
fires once at CHILD or DELETED. A recursive watch fires at every CREATED, CHANGED and DELETED of its path and below,
until it is removed. The watches of one event are told in the order in which they were set.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import ROOT

NO_NODE_ZXID = -1  # of a watch that was set where there was no node


class WatchKind(enum.IntEnum):
    """The event that a watch waits for. The numbers are part of the embedded store's protocol."""

    DATA = 1
    CHILD = 2
    RECURSIVE = 3


_FIRES: dict[EventType, tuple[WatchKind, ...]] = {
    EventType.CREATED: (WatchKind.DATA,),
    EventType.CHANGED: (WatchKind.DATA,),
    EventType.DELETED: (WatchKind.DATA, WatchKind.CHILD),
    EventType.CHILD: (WatchKind.CHILD,),
}


@dataclass(eq=False, slots=True)
class WatchEntry:
    """One watch of a table."""

    kind: WatchKind
    path: str
    number: int = field(default=0, init=False)  # grows in the order in which the table's watches were set; 0: in none


W = TypeVar("W", bound=WatchEntry)


class WatchTable(Generic[W]):
    """Watches by number, and by kind and path. Iteration is over a copy, in the order in which they were set."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._entries: dict[int, W] = {}
        self._at: dict[WatchKind, dict[str, dict[W, None]]] = {kind: {} for kind in WatchKind}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._entries.values()))

    def __contains__(self, entry: W) -> bool:
        return entry.number in self._entries

    def add(self, entry: W) -> W:
        assert entry.number == 0, "a watch is set once"
        entry.number = next(self._numbers)
        self._entries[entry.number] = entry
        self._at[entry.kind].setdefault(entry.path, {})[entry] = None
        return entry

    def get(self, number: int) -> W | None:
        """Return the watch of a number, or None if it was removed."""
        return self._entries.get(number)

    def remove(self, entry: W) -> bool:
        """Remove a watch. Return False if it has fired or was already removed."""
        if self._entries.pop(entry.number, None) is None:
            return False
        at_path = self._at[entry.kind][entry.path]
        del at_path[entry]
        if not at_path:
            del self._at[entry.kind][entry.path]
        return True

    def clear(self) -> None:
        for entry in self:
            self.remove(entry)
        assert not any(self._at.values()), "no watch stands outside of the table"

    def matching(self, event: WatchEvent) -> list[W]:
        """Return the watches that match the event. None is removed."""
        found = [entry for kind in _FIRES[event.type] for entry in self._at[kind].get(event.path, ())]
        recursive = self._at[WatchKind.RECURSIVE]
        if event.type is EventType.CHILD or not recursive:
            return found
        path = event.path
        while path != ROOT:
            found.extend(recursive.get(path, ()))
            path = path.rpartition("/")[0] or ROOT
        found.extend(recursive.get(ROOT, ()))
        return found

    def fire(self, event: WatchEvent) -> list[W]:
        """Return the watches that match the event, and remove those of them that fire once."""
        fired = self.matching(event)
        for entry in fired:
            if entry.kind is not WatchKind.RECURSIVE:
                self.remove(entry)
        return fired


class NodeZxids(Protocol):
    """The transactions that changed a node, as in the node or its stat."""

    @property
    def czxid(self) -> int:
        """The transaction that created it."""

    @property
    def mzxid(self) -> int:
        """The transaction that changed its value last."""

    @property
    def pzxid(self) -> int:
        """The transaction that changed its list of children last."""


def missed_event(kind: WatchKind, node: NodeZxids | None, czxid: int, zxid: int) -> EventType | None:
    """Return the event that a one-shot watch missed while it could not be told, or None.

    Args:
        node: the present node, None if there is none.
        czxid: the czxid that the node had when the watch was set, or NO_NODE_ZXID.
        zxid: the mzxid that the node had then; for a child watch, the pzxid.
    """
    if kind is WatchKind.RECURSIVE:
        return None
    if czxid == NO_NODE_ZXID:
        return EventType.CREATED if node is not None else None
    if node is None or node.czxid != czxid:
        return EventType.DELETED
    if kind is WatchKind.DATA:
        return EventType.CHANGED if node.mzxid != zxid else None
    return EventType.CHILD if node.pzxid != zxid else None
