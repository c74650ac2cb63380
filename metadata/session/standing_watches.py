"""The standing watches of one client session, for every backend.

A watch is added before or after its read and armed with the node as read, so that after a lost connection the session
can find the event that the watch missed. A watch stands until its watcher is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from heliograph.metadata.session.clock import run_callback
from heliograph.metadata.session.watches import (
    NO_NODE_ZXID,
    NodeZxids,
    WatchEntry,
    WatchKind,
    WatchTable,
    missed_event,
)
from heliograph.metadata.store import EventType, Watch, Watcher, WatchEvent


@dataclass(eq=False, slots=True)
class StandingWatch(WatchEntry):
    """A watch, its watcher, and the node as the session knew it when the watch was armed."""

    watcher: Watcher
    is_armed: bool = False  # the store has answered the read that set the watch
    czxid: int = NO_NODE_ZXID
    zxid: int = NO_NODE_ZXID  # the mzxid; of a child watch the pzxid

    def arm(self, node: NodeZxids | None) -> None:
        """Note that the store has set the watch; the node was as given then, None: there was none."""
        assert not self.is_armed, "a watch is armed once"
        self.is_armed = True
        if node is not None:
            self.czxid = node.czxid
            self.zxid = node.pzxid if self.kind is WatchKind.CHILD else node.mzxid

    def missed(self, node: NodeZxids | None) -> EventType | None:
        """Return the event that the watch has missed, given the present node; None if it has missed none."""
        return missed_event(self.kind, node, self.czxid, self.zxid) if self.is_armed else None


S = TypeVar("S", bound=StandingWatch)


class StandingWatches(WatchTable[S]):
    """All watches of one session."""

    def deliver(self, watch: S, event: WatchEvent) -> None:
        """Call the watcher of a watch, unless it was removed. A one-shot watch is removed first."""
        if watch not in self:
            return
        if watch.kind is not WatchKind.RECURSIVE:
            self.remove(watch)
        run_callback("watcher", watch.watcher, event)


class WatchHandle(Watch):
    """The ``Watch`` that a store returns: ``cancel`` runs the function that it was given."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        self._cancel()
