"""The session's standing watches: who is told of which change, and from which revision on. No I/O.

A watch is added before the read that it comes with is sent, and armed with the revision that the read was answered at:
changes up to there were in the answer, later ones are told, also those that arrived before the answer did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from metadata.etcd.shadow import Revisions
from metadata.store import EventType, Watcher, WatchEvent
from metadata.watches import NO_NODE_ZXID, WatchEntry, WatchKind, WatchTable, missed_event
from metadata.znode import ROOT, parent_of

_LISTS_CHILDREN = (EventType.CREATED, EventType.DELETED)


@dataclass(eq=False, slots=True)
class Standing:
    """One watch. ``armed_after`` None: its read was not answered yet. ``known``: the node at that revision."""

    kind: WatchKind
    path: str
    watcher: Watcher
    armed_after: int | None = None
    known: Revisions | None = None
    pending: list[tuple[int, WatchEvent]] = field(default_factory=list)
    entry: WatchEntry[Standing] | None = None  # None: not standing any more


class Watchboard:
    """All watches of one session."""

    def __init__(self) -> None:
        self._table: WatchTable[Standing] = WatchTable()
        self._standing: dict[Standing, None] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def __iter__(self) -> Iterator[Standing]:
        return iter(list(self._standing))

    def add(self, kind: WatchKind, path: str, watcher: Watcher) -> Standing:
        """A watch whose read is about to be sent."""
        standing = Standing(kind, path, watcher)
        self._standing[standing] = None
        standing.entry = self._table.add(kind, path, standing)
        return standing

    def arm(self, standing: Standing, revision: int, known: Revisions | None) -> None:
        """Its read was answered: ``known`` is the node as it was then, None for no node."""
        if standing.entry is None:
            return
        standing.armed_after = revision
        standing.known = known
        pending, standing.pending = standing.pending, []
        loop = asyncio.get_running_loop()
        for changed_at, event in pending:
            if changed_at > revision:
                # In the queue of the loop, behind the waiter of the answer.
                loop.call_soon(self._deliver, standing, event)

    def remove(self, standing: Standing) -> None:
        """Take a watch away; nothing happens if it has fired or was removed already."""
        if standing.entry is not None:
            self._table.remove(standing.entry)
            standing.entry = None
        self._standing.pop(standing, None)

    def clear(self) -> None:
        """Remove all: the session is over."""
        for standing in list(self._standing):
            self.remove(standing)

    def publish(self, revision: int, events: Iterable[WatchEvent]) -> None:
        """Tell of one revision's changes, in order."""
        for event in events:
            self._fire(revision, event)
            if event.type in _LISTS_CHILDREN and event.path != ROOT:
                self._fire(revision, WatchEvent(EventType.CHILD, parent_of(event.path)))

    def missed(self, now: Mapping[str, Revisions]) -> list[WatchEvent]:
        """What the one-shot watches missed, if the nodes they watch are as in ``now``; those left out do not exist."""
        events: dict[WatchEvent, None] = {}
        for standing in self._standing:
            if standing.armed_after is None or standing.kind is WatchKind.RECURSIVE:
                continue  # a watch that is not armed has nothing to miss: its read comes later
            known = standing.known
            seen = NO_NODE_ZXID if known is None else known.pzxid if standing.kind is WatchKind.CHILD else known.mzxid
            czxid = NO_NODE_ZXID if known is None else known.czxid
            missed = missed_event(standing.kind, now.get(standing.path), czxid, seen)
            if missed is not None:
                events[WatchEvent(missed, standing.path)] = None
        return list(events)

    def _fire(self, revision: int, event: WatchEvent) -> None:
        for entry in self._table.fire(event):
            standing = entry.owner
            is_early = standing.armed_after is None or revision <= standing.armed_after
            if is_early and standing.kind is not WatchKind.RECURSIVE:
                standing.entry = self._table.add(standing.kind, standing.path, standing)
            if standing.armed_after is None:
                standing.pending.append((revision, event))
            elif not is_early:
                self._deliver(standing, event)

    def _deliver(self, standing: Standing, event: WatchEvent) -> None:
        if standing not in self._standing:
            return
        if standing.kind is not WatchKind.RECURSIVE:
            self.remove(standing)
        try:
            standing.watcher(event)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a watcher failed", "exception": error})
