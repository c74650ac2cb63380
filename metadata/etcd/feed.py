"""From etcd's watch stream to the session's watches: in order, without a gap, and before what is read.

``revision`` is how far the watches were told. After a lost connection the stream goes on from there, on whichever
endpoint. Where etcd has compacted that part of its history, the nodes are read as they are, and the watches are told
of the differences.

Reads ask ``reached`` before they answer. They give the newest revision that their answer reveals, which is always one
of a key that the stream tells of, so the wait is for something that is on its way.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError, RecordError
from metadata.etcd.changes import changes_in
from metadata.etcd.connection import Connection
from metadata.etcd.shadow import Revisions, Shadow
from metadata.etcd.stream import SESSION_WATCH, WatchStream
from metadata.etcd.survey import Survey
from metadata.etcd.transaction import Requests
from metadata.etcd.watchboard import Standing, Watchboard
from metadata.session_limits import CALL_WAIT_SECONDS_MAX
from metadata.store import EventType, Watcher
from metadata.watches import WatchKind


class Feed:
    """The watches of one session, and what keeps them informed."""

    def __init__(
        self,
        requests: Requests,
        on_session_over: Callable[[], None],
        on_broken: Callable[[Connection, HeliographError], None],
    ) -> None:
        self._requests = requests
        self._on_session_over = on_session_over
        self._on_broken = on_broken
        self._board = Watchboard()
        self._shadow = Shadow()
        self._connection: Connection | None = None
        self._stream: WatchStream | None = None
        self._fragments: list[Any] = []
        self._is_wanted = False
        self._starting: asyncio.Task[None] | None = None
        self._stands = asyncio.Event()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self._is_closed = False
        self._session_id = 0
        self.revision = 0

    @property
    def has_watches(self) -> bool:
        """Whether anybody would see that an event comes late."""
        return len(self._board) > 0

    async def attach(self, connection: Connection, session_id: int, revision: int) -> None:
        """Go on, on a new connection.

        Args:
            revision: one at which the session was there.

        Raises:
            HeliographError: as the connection.
        """
        self.detach()
        self._connection = connection
        self._session_id = session_id
        self._stream = stream = WatchStream(connection, self._take, self._broken)
        await stream.watch_session(self._requests.keys, session_id, revision + 1)
        if self._is_wanted:
            await self._start(connection, stream)

    def detach(self) -> None:
        """The connection is no more; watches stand, and are told later."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if self._stream is not None:
            self._stream.close()
        self._stream = self._connection = None
        self._fragments.clear()
        self._stands.clear()

    def close(self) -> None:
        """The session is over: no watch is told of anything from now on."""
        self._is_closed = True
        self.detach()
        self._board.clear()
        self._stands.set()
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def add(self, kind: WatchKind, path: str, watcher: Watcher) -> Standing:
        """A watch that will be told of what happens after a read that is sent now; ``arm`` or ``remove`` it then.

        Raises:
            ConnectionLossError: no connection in time.
        """
        self._is_wanted = True
        if not self._stands.is_set():
            await self._until_it_stands()
        return self._board.add(kind, path, watcher)

    def arm(self, standing: Standing, revision: int, known: Revisions | None) -> None:
        """See Watchboard."""
        self._board.arm(standing, revision, known)

    def remove(self, standing: Standing) -> None:
        """Take a watch away. Idempotent."""
        was_covered = standing.kind is WatchKind.RECURSIVE and standing.armed_after is not None
        if standing.entry is not None and was_covered:
            self._shadow.uncover(standing.path)
        self._board.remove(standing)

    async def arm_below(self, standing: Standing) -> None:
        """Arm a recursive watch: look at what there is now, so that a gap can be bridged later.

        Raises:
            HeliographError: as the connection.
        """
        if self._connection is None:
            raise ConnectionLossError("no connection to etcd")
        revision, nodes = await Survey(self._requests, self._connection).below([standing.path])
        if standing.entry is not None:
            self._shadow.cover(standing.path, nodes)
            self._board.arm(standing, revision, None)

    async def reached(self, revision: int) -> None:
        """Return when the watches were told of everything up to a revision that changed a key of the tree."""
        if revision <= self.revision or self._is_closed or not self._is_wanted:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (revision, self._waiter_count, waiter))
        await waiter

    async def _until_it_stands(self) -> None:
        if self._stream is not None and self._connection is not None and self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start_late(self._connection, self._stream))
        try:
            async with asyncio.timeout(CALL_WAIT_SECONDS_MAX):
                await self._stands.wait()
        except TimeoutError:
            raise ConnectionLossError("no connection to etcd to watch on; nothing is watched") from None

    async def _start_late(self, connection: Connection, stream: WatchStream) -> None:
        try:
            await self._start(connection, stream)
        except HeliographError as error:
            self._broken(stream, error)
        finally:
            self._starting = None

    async def _start(self, connection: Connection, stream: WatchStream) -> None:
        revision = await stream.watch_tree(
            self._requests.keys, self._session_id, self.revision + 1 if self.revision else 0
        )
        if self._stream is not stream:
            return
        if not self.revision:
            self.revision = revision
        self._stands.set()

    def _take(self, stream: WatchStream, response: Any) -> None:
        if response.compact_revision and response.watch_id == SESSION_WATCH:
            self._broken(stream, ConnectionLossError("etcd was compacted while the session was attached"))
        elif response.compact_revision:
            self._stands.clear()
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
                if change.is_session_over:  # I13: before anything of it is told
                    self._on_session_over()
                    return
                for path, revisions in change.nodes:
                    self._shadow.apply(path, revisions, change.revision)
                self._board.publish(change.revision, change.events)
                self._advance(change.revision)
        except RecordError as error:
            # What happened cannot be told, now or ever: whoever relies on it has to begin anew.
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the metadata is damaged", "exception": error}
            )
            self._on_session_over()
            return
        if not events:
            self._advance(response.header.revision)  # of etcd as a whole: nothing of ours came before it

    async def _bridge_and_start(self, connection: Connection, stream: WatchStream) -> None:
        try:
            await self._bridge(connection)
            await self._start(connection, stream)
        except HeliographError as error:
            self._broken(stream, error)
        finally:
            self._starting = None

    async def _bridge(self, connection: Connection) -> None:
        survey = Survey(self._requests, connection)
        roots = self._shadow.roots
        watched = {standing.path for standing in self._board if standing.kind is not WatchKind.RECURSIVE}
        revision, below = await survey.below(roots)
        nodes_at, nodes = await survey.nodes(watched)
        events = dict.fromkeys([*self._shadow.replace(below), *self._board.missed(nodes)])
        revision = revision if roots else nodes_at  # the stream goes on from here: see the later one's changes again
        self._board.publish(revision, sorted(events, key=lambda event: event.type is not EventType.DELETED))
        self._advance(revision)

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        while self._waiters and self._waiters[0][0] <= self.revision:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    def _broken(self, stream: WatchStream, error: HeliographError) -> None:
        if stream is self._stream and self._connection is not None:
            self._on_broken(self._connection, error)
