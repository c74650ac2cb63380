"""The table of standing watches of one store: who is told of which event. No I/O.

A data watch fires once at CREATED, CHANGED or DELETED of its path (``get`` and ``exists`` leave it), a child watch
once at CHILD or DELETED; a recursive watch fires at every CREATED, CHANGED and DELETED of its path and below, until
it is removed. The order of one event's watches is the order in which they were set.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from metadata.store import EventType, WatchEvent
from metadata.znode import ROOT, parent_of

T = TypeVar("T")

NO_NODE_ZXID = -1  # of a watch that was set where there was no node


class WatchKind(enum.IntEnum):
    """What a watch waits for. The numbers are part of the embedded store's protocol."""

    DATA = 1
    CHILD = 2
    RECURSIVE = 3


_FIRES: dict[EventType, tuple[WatchKind, ...]] = {
    EventType.CREATED: (WatchKind.DATA,),
    EventType.CHANGED: (WatchKind.DATA,),
    EventType.DELETED: (WatchKind.DATA, WatchKind.CHILD),
    EventType.CHILD: (WatchKind.CHILD,),
}


@dataclass(eq=False, frozen=True, slots=True)
class WatchEntry(Generic[T]):
    """One watch of the table; ``owner`` is whatever its server needs to deliver an event."""

    kind: WatchKind
    path: str
    owner: T


class WatchTable(Generic[T]):
    """All watches, by kind and path."""

    def __init__(self) -> None:
        self._entries: dict[WatchKind, dict[str, dict[WatchEntry[T], None]]] = {kind: {} for kind in WatchKind}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, kind: WatchKind, path: str, owner: T) -> WatchEntry[T]:
        """Set a watch; the returned entry is what ``remove`` takes."""
        entry = WatchEntry(kind, path, owner)
        self._entries[kind].setdefault(path, {})[entry] = None
        self._count += 1
        return entry

    def remove(self, entry: WatchEntry[T]) -> None:
        """Take a watch away; nothing happens if it has fired or was removed already."""
        at_path = self._entries[entry.kind].get(entry.path)
        if at_path is None or entry not in at_path:
            return
        del at_path[entry]
        self._count -= 1
        if not at_path:
            del self._entries[entry.kind][entry.path]

    def fire(self, event: WatchEvent) -> list[WatchEntry[T]]:
        """The watches that the event is for; those that fire once are gone from the table."""
        fired: list[WatchEntry[T]] = []
        for kind in _FIRES[event.type]:
            at_path = self._entries[kind].pop(event.path, None)
            if at_path:
                fired.extend(at_path)
        self._count -= len(fired)
        if event.type is not EventType.CHILD:
            fired.extend(self._recursive(event.path))
        return fired

    def _recursive(self, path: str) -> list[WatchEntry[T]]:
        table = self._entries[WatchKind.RECURSIVE]
        found: list[WatchEntry[T]] = []
        while table:
            found.extend(table.get(path, ()))
            if path == ROOT:
                break
            path = parent_of(path)
        return found


class Dated(Protocol):
    """What is known of a node, or of its stat."""

    @property
    def czxid(self) -> int:
        """The transaction that created it."""

    @property
    def mzxid(self) -> int:
        """The transaction that changed its value last."""

    @property
    def pzxid(self) -> int:
        """The transaction that changed its list of children last."""


def missed_event(kind: WatchKind, node: Dated | None, czxid: int, zxid: int) -> EventType | None:
    """What a one-shot watch has missed while nobody could tell its owner.

    Args:
        node: as it is now, None when there is none.
        czxid: of the node as the owner saw it when it set the watch, or NO_NODE_ZXID.
        zxid: the owner's mzxid, for a child watch its pzxid.
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
