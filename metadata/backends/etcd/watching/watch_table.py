"""The session's standing watches: who is told of which change, and from which revision on.

A watch is added before the read that comes with it is sent, and armed with the revision that the read was answered at:
changes up to there were in the answer, later ones are told, also those that arrived before the answer did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from heliograph.metadata.backends.etcd.watching.cached_nodes import Revisions
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of

_LISTS_CHILDREN = (EventType.CREATED, EventType.DELETED)


@dataclass(eq=False, slots=True)
class EtcdWatch(StandingWatch):
    """A watch that is told of the changes after the revision ``armed_at``."""

    armed_at: int = 0  # 0: its read was not answered yet
    pending: list[tuple[int, WatchEvent]] = field(default_factory=list)  # not told yet, by revision, in order


class EtcdWatchTable(StandingWatches[EtcdWatch]):
    """All watches of one session."""

    def arm_at(self, watch: EtcdWatch, revision: int, node: Revisions | None) -> None:
        """Arm a watch whose read was answered, with the node as it was at that revision, None for no node."""
        if watch not in self:
            return
        watch.arm(node)
        watch.armed_at = revision
        watch.pending = [(changed_at, event) for changed_at, event in watch.pending if changed_at > revision]
        if watch.pending:
            # In the queue of the loop, behind the waiter of the answer.
            asyncio.get_running_loop().call_soon(self._deliver_pending, watch)

    def publish(self, revision: int, events: Iterable[WatchEvent]) -> None:
        """Tell the watches of one revision's changes, in order."""
        for event in events:
            self._publish(revision, event)
            if event.type in _LISTS_CHILDREN and event.path != ROOT:
                self._publish(revision, WatchEvent(EventType.CHILD, parent_of(event.path)))

    def missed(self, nodes: Mapping[str, Revisions]) -> list[WatchEvent]:
        """Return what the one-shot watches missed if the nodes are as given now; those left out do not exist."""
        missed = ((watch.path, watch.missed(nodes.get(watch.path))) for watch in self)
        return list(dict.fromkeys(WatchEvent(kind, path) for path, kind in missed if kind is not None))

    def _publish(self, revision: int, event: WatchEvent) -> None:
        for watch in self.matching(event):
            if not watch.is_armed or watch.pending:
                watch.pending.append((revision, event))
            elif revision > watch.armed_at:
                self.deliver(watch, event)

    def _deliver_pending(self, watch: EtcdWatch) -> None:
        pending, watch.pending = watch.pending, []
        for _, event in pending:
            self.deliver(watch, event)
