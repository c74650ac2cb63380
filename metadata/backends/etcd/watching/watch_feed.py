"""The path from etcd's watch stream to the session's watches: in order, without a gap, and before what is read.

``revision`` is the newest revision that the watches were told of. After a lost connection the stream goes on from
there, on any endpoint. If etcd has compacted that part of its history, the present nodes are read, and the watches are
told of the differences.

A read waits with ``reached`` before it is answered. It names the newest revision that its answer reveals, which is
always the revision of a key that the stream reports, so the wait ends.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.etcd.transactions.transaction import EtcdRequests
from heliograph.metadata.backends.etcd.watching.cached_nodes import CachedNodes, Revisions
from heliograph.metadata.backends.etcd.watching.range_scan import RangeScan
from heliograph.metadata.backends.etcd.watching.watch_stream import SESSION_WATCH, WatchStream
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.backends.etcd.wire.record import decode_events
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.session.limits import CALL_WAIT_SECONDS_MAX
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, Watcher, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of

_DELETE = 1  # mvccpb.Event.DELETE


@dataclass(slots=True)
class Change:
    """One revision: the events for watchers, and the changed nodes as of then (None: deleted).

    ``is_session_over``: it ended the session that reads it, which gets none of its events.
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


_LISTS_CHILDREN = (EventType.CREATED, EventType.DELETED)


@dataclass(eq=False, slots=True)
class EtcdWatch(StandingWatch):
    """A watch that is told of the changes after the revision ``armed_at``."""

    armed_at: int = 0  # 0: its read was not answered yet
    pending: list[tuple[int, WatchEvent]] = field(default_factory=list)  # not told yet, by revision, in order


class EtcdWatchTable(StandingWatches[EtcdWatch]):
    """All watches of one session: who is told of which change, and from which revision on.

    A watch is added before its read is sent, and armed with the revision at which the read was answered: the answer
    contains the changes up to that revision. Later changes are told, even those that arrived before the answer.
    """

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
        """Return the events that the one-shot watches missed, given the present nodes; nodes left out do not exist."""
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


class WatchFeed:
    """The watches of one session, and the stream that tells them of changes."""

    def __init__(
        self,
        requests: EtcdRequests,
        on_session_over: Callable[[], None],
        on_broken: Callable[[EtcdConnection, HeliographError], None],
    ) -> None:
        self._requests = requests
        self._on_session_over = on_session_over
        self._on_broken = on_broken
        self._watches = EtcdWatchTable()
        self._cached_nodes = CachedNodes()
        self._connection: EtcdConnection | None = None
        self._stream: WatchStream | None = None
        self._fragments: list[Any] = []
        self._has_had_watches = False
        self._starting: asyncio.Task[None] | None = None
        self._is_standing = asyncio.Event()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self._is_closed = False
        self._session_id = 0
        self.revision = 0

    @property
    def has_watches(self) -> bool:
        """Whether there is any watch, so that an event could come too late."""
        return len(self._watches) > 0

    async def attach(self, connection: EtcdConnection, session_id: int, revision: int) -> None:
        """Open the stream on a new connection and go on where the previous stream ended.

        Args:
            revision: a revision of etcd at which the session was there.

        Raises:
            HeliographError: as the connection.
        """
        self.detach()
        self._connection = connection
        self._session_id = session_id
        self._stream = stream = WatchStream(connection, self._take, self._broken)
        await stream.watch_session(self._requests.keys, session_id, revision + 1)
        if self._has_had_watches:
            await self._start(connection, stream)

    def detach(self) -> None:
        """Close the stream of an abandoned connection. The watches remain and are told later."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._stream is not None:
            self._stream.close()
        self._stream = self._connection = None
        self._fragments.clear()
        self._is_standing.clear()

    def close(self) -> None:
        """End every watch because the session is over. No watcher is called from now on."""
        self._is_closed = True
        self.detach()
        self._watches.clear()
        self._is_standing.set()
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def add(self, kind: WatchKind, path: str, watcher: Watcher) -> EtcdWatch:
        """Return a watch for a read that is about to be sent. ``arm`` it with the answer, or ``remove`` it.

        Raises:
            ConnectionLossError: no connection in time.
        """
        self._has_had_watches = True
        if not self._is_standing.is_set():
            await self._wait_until_standing()
        return self._watches.add(EtcdWatch(kind, path, watcher))

    def arm(self, watch: EtcdWatch, revision: int, node: Revisions | None) -> None:
        """Arm a watch whose read was answered, with the node as it was at that revision, None for no node."""
        self._watches.arm_at(watch, revision, node)

    def remove(self, watch: EtcdWatch) -> None:
        """Remove a watch. Idempotent."""
        if self._watches.remove(watch) and watch.kind is WatchKind.RECURSIVE and watch.is_armed:
            self._cached_nodes.uncover(watch.path)

    async def arm_below(self, watch: EtcdWatch) -> None:
        """Arm a recursive watch. Read the nodes below it first, so that a gap can be bridged later.

        Raises:
            HeliographError: as the connection.
        """
        if self._connection is None:
            raise ConnectionLossError("no connection to etcd")
        revision, nodes = await RangeScan(self._requests, self._connection).below([watch.path])
        if watch in self._watches:
            self._cached_nodes.cover(watch.path, nodes)
            self._watches.arm_at(watch, revision, None)

    async def reached(self, revision: int) -> None:
        """Wait until the watches were told of everything up to a revision that changed a key of the tree."""
        if revision <= self.revision or self._is_closed or not self._has_had_watches:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (revision, self._waiter_count, waiter))
        await waiter

    async def _wait_until_standing(self) -> None:
        if self._stream is not None and self._connection is not None and self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start_late(self._connection, self._stream))
        try:
            async with asyncio.timeout(CALL_WAIT_SECONDS_MAX):
                await self._is_standing.wait()
        except TimeoutError:
            raise ConnectionLossError("no connection to etcd; the watch is not set") from None

    async def _start_late(self, connection: EtcdConnection, stream: WatchStream) -> None:
        try:
            await self._start(connection, stream)
        except HeliographError as error:
            self._broken(stream, error)
        finally:
            self._starting = None

    async def _start(self, connection: EtcdConnection, stream: WatchStream) -> None:
        revision = await stream.watch_tree(
            self._requests.keys, self._session_id, self.revision + 1 if self.revision else 0
        )
        if self._stream is not stream:
            return
        if not self.revision:
            self.revision = revision
        self._is_standing.set()

    def _take(self, stream: WatchStream, response: Any) -> None:
        if response.compact_revision and response.watch_id == SESSION_WATCH:
            self._broken(stream, ConnectionLossError("etcd was compacted while the session was attached"))
        elif response.compact_revision:
            self._is_standing.clear()
            assert self._connection is not None, "a stream has a connection"
            task = self._bridge_and_start(self._connection, stream)
            self._starting = asyncio.get_running_loop().create_task(task)
        elif response.watch_id == SESSION_WATCH:
            if response.events:
                self._on_session_over()
        else:
            self._take_tree(response)

    def _take_tree(self, response: Any) -> None:
        events = [*self._fragments, *response.events]
        if response.fragment:
            self._fragments = events
            return
        self._fragments = []
        try:
            for change in changes_in(self._requests.keys, events, self._requests.keys.session(self._session_id)):
                if change.is_session_over:  # I13: the owner hears of the end before any watcher does
                    self._on_session_over()
                    return
                for path, revisions in change.nodes:
                    self._cached_nodes.apply(path, revisions, change.revision)
                self._watches.publish(change.revision, change.events)
                self._advance(change.revision)
        except RecordError as error:
            # The watches can never be told of this change, so the session cannot go on.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a metadata record in etcd is damaged", "exception": error}
            )
            self._on_session_over()
            return
        if not events:
            self._advance(response.header.revision)  # a progress report: every earlier change of the tree was told

    async def _bridge_and_start(self, connection: EtcdConnection, stream: WatchStream) -> None:
        try:
            await self._bridge(connection)
            await self._start(connection, stream)
        except HeliographError as error:
            self._broken(stream, error)
        finally:
            self._starting = None

    async def _bridge(self, connection: EtcdConnection) -> None:
        scan = RangeScan(self._requests, connection)
        roots = self._cached_nodes.roots
        watched = {watch.path for watch in self._watches if watch.kind is not WatchKind.RECURSIVE}
        revision, below = await scan.below(roots)
        nodes_at, nodes = await scan.nodes(watched)
        events = dict.fromkeys([*self._cached_nodes.replace(below), *self._watches.missed(nodes)])
        revision = revision if roots else nodes_at  # of the first read: the stream tells later changes again
        self._watches.publish(revision, sorted(events, key=lambda event: event.type is not EventType.DELETED))
        self._advance(revision)

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision, revision)  # it only grows
        while self._waiters and self._waiters[0][0] <= self.revision:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    def _broken(self, stream: WatchStream, error: HeliographError) -> None:
        if stream is self._stream and self._connection is not None:
            self._on_broken(self._connection, error)
