"""The changes of nodes in the events of etcd. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from heliograph.metadata.backends.etcd.watching.cached_nodes import Revisions
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.backends.etcd.wire.record import decode_events
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import ROOT

_DELETE = 1  # mvccpb.Event.DELETE


@dataclass(slots=True)
class Change:
    """One revision: the events that watchers are told of, and the nodes as it left them (None: deleted).

    ``is_session_over``: it ended the session that reads it, which is told nothing else of it.
    """

    revision: int
    is_session_over: bool = False
    events: list[WatchEvent] = field(default_factory=list)
    nodes: list[tuple[str, Revisions | None]] = field(default_factory=list)


def changes_in(keys: Keys, events: Iterable[Any], session_key: bytes) -> Iterator[Change]:
    """Yield the changes in some events of etcd, in order. All events of a revision must be among them.

    Raises:
        RecordError: a record of events is damaged.
    """
    for revision, group in groupby(events, key=lambda event: int(event.kv.mod_revision)):
        change = Change(revision)
        recorded = None
        for event in group:
            if event.kv.key == session_key and event.type == _DELETE:
                change.is_session_over = True
            if event.kv.key == keys.events:
                recorded = decode_events(keys.events, event.kv.value)
            path = keys.path_of(event.kv.key)
            if path is not None:
                _add(change, event, path)
        if recorded is not None:
            change.events = recorded
        yield change


def _add(change: Change, event: Any, path: str) -> None:
    if event.type == _DELETE:
        change.nodes.append((path, None))
        change.events.append(WatchEvent(EventType.DELETED, path))
        return
    change.nodes.append((path, Revisions(event.kv.create_revision, event.kv.mod_revision)))
    if event.kv.version > 1:  # of the key: how often it was written since it was created
        change.events.append(WatchEvent(EventType.CHANGED, path))
    elif path != ROOT:  # the root exists before any session does
        change.events.append(WatchEvent(EventType.CREATED, path))
