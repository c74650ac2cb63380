"""One watch stream of a connection: two etcd watchers, read on a thread, handled on the event loop.

The first watches the session's own key, so that the session hears at once when another client ends it. The second is
asked for when the session sets its first watch. It watches every node of the store and, again, the session's key: one
watcher for all, because etcd keeps the order of changes within one watcher only.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from heliograph.base.errors import HeliographError, NotPermittedError
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection, tell_loop
from heliograph.metadata.backends.etcd.wire.failures import translated
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.errors import ConnectionLossError

SESSION_WATCH = 0  # etcd numbers the watchers of a stream in the order in which they were asked for


class WatchStream:
    """One stream. Callbacks run on the event loop, in the order of etcd's responses."""

    def __init__(
        self,
        connection: EtcdConnection,
        on_response: Callable[[WatchStream, Any], None],
        on_broken: Callable[[WatchStream, HeliographError], None],
    ) -> None:
        """
        Args:
            on_response: gets every response except the confirmations of watchers.
            on_broken: called once when the stream has ended without ``close``.
        """
        self._connection = connection
        self._on_response = on_response
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._created: deque[asyncio.Future[int]] = deque()  # etcd answers in order
        self._is_closed = False
        self._call = connection.open_watch(self._sent())
        self._thread = threading.Thread(target=self._read, name="etcd-watch", daemon=True)
        self._thread.start()

    async def watch_session(self, keys: Keys, session_id: int, start_revision: int) -> None:
        """Watch the session's own key; a response to SESSION_WATCH reports its deletion."""
        create = self._connection.api.WatchCreateRequest(key=keys.session(session_id), start_revision=start_revision)
        create.filters.append(self._connection.api.WatchCreateRequest.NOPUT)
        await self._watch(create)

    async def watch_tree(self, keys: Keys, session_id: int, start_revision: int) -> int:
        """Watch every node from a revision on (0: from now on). Return etcd's revision when the watcher was created.

        The session's own key lies in the same range: within one watcher etcd keeps the order, so the session's end
        cannot come after the end of its ephemerals (I13).

        A response that is canceled and has a compact_revision says that the history is gone.
        """
        create = self._connection.api.WatchCreateRequest(
            key=keys.session(session_id),
            range_end=keys.tree_end,
            start_revision=start_revision,
            fragment=True,
            progress_notify=True,
        )
        return await self._watch(create)

    def close(self) -> None:
        """End the stream. No callback is called after this returns."""
        self._is_closed = True
        self._requests.put(None)
        self._call.cancel()
        self._fail(ConnectionLossError("the watch stream was closed"))

    async def _watch(self, create: Any) -> int:
        if self._is_closed:
            raise ConnectionLossError("the watch stream was closed")
        created: asyncio.Future[int] = self._loop.create_future()
        self._created.append(created)
        self._requests.put(self._connection.api.WatchRequest(create_request=create))
        return await created

    def _sent(self) -> Iterator[Any]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        broken: HeliographError = ConnectionLossError(f"etcd at {self._connection.endpoint} ended the watch stream")
        try:
            for response in self._call:
                tell_loop(self._loop, partial(self._take, response))
        except grpc.RpcError as error:
            broken = translated(error, self._connection.endpoint)
        tell_loop(self._loop, partial(self._break, broken))

    def _take(self, response: Any) -> None:
        if self._is_closed:
            return
        if response.canceled and not response.compact_revision:
            denied = "permission" in response.cancel_reason
            said = (
                f"etcd at {self._connection.endpoint} refuses to watch: {response.cancel_reason or 'no reason given'}"
            )
            self._call.cancel()
            self._break(NotPermittedError(said, field="url") if denied else ConnectionLossError(said))
        elif response.created:
            created = self._created.popleft()
            if not created.done():
                created.set_result(response.header.revision)
        else:
            self._on_response(self, response)

    def _break(self, error: HeliographError) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._requests.put(None)
        self._fail(error)
        self._on_broken(self, error)

    def _fail(self, error: HeliographError) -> None:
        for created in self._created:
            if not created.done():
                created.set_exception(error)
                created.exception()
        self._created.clear()
