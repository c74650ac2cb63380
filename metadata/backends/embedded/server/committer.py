"""Group commit: all transactions that are made while a write is under way go into the next write.

Answers and watch events are held here, with the zxid that they reveal, until that transaction is durable. They leave in
the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from heliograph.metadata.backends.embedded.server.index import IndexChange
from heliograph.metadata.backends.embedded.server.nodes import Change, StoredNodes
from heliograph.metadata.backends.embedded.server.record import STATE_KEY, encode_session, encode_state, session_key
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.tree import TreeTransaction, ZnodeTree
from heliograph.metrics.metric import Histogram


class ReplySink(Protocol):
    """The receiver of held frames: one client's connection."""

    def put(self, frame: bytes) -> None:
        """Queue a frame. Nothing happens on a connection that is gone."""

    def flush(self) -> None:
        """Send the queued frames."""


class Committer:
    """The writer of the tree's changes, on a thread of its own, at most one write at a time."""

    def __init__(
        self,
        tree: ZnodeTree,
        nodes: StoredNodes,
        storage: TreeStorage,
        on_durable: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._storage = storage
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-commit")
        self._sessions: dict[int, None] = {}
        self._held: deque[tuple[int, ReplySink, bytes]] = deque()
        self._scheduled = False
        self._write: asyncio.Future[None] | None = None
        self._failed = False
        self._dirty_bytes = 0  # of values that wait for the next write
        self._writing_bytes = 0
        self.held_bytes = 0  # of values and answers that are not durable yet
        self.durable_zxid = tree.zxid
        self.commits = 0
        self.latency = Histogram()  # of writes, in seconds
        self._began = 0.0  # of the write under way
        self.transactions = 0

    def record(self, transaction: TreeTransaction, value_bytes: int) -> None:
        """Put a transaction of the tree into the next write."""
        assert transaction.zxid <= self._tree.zxid, "the tree has made the transaction"
        self._sessions.update(dict.fromkeys(transaction.sessions))
        self.transactions += 1
        self._dirty_bytes += value_bytes
        self.held_bytes += value_bytes
        if not self._scheduled and self._write is None:
            self._scheduled = True
            # At the end of this round of the loop, so that every request that has arrived shares the write.
            asyncio.get_running_loop().call_soon(self._begin)

    def send(self, sink: ReplySink, zxid: int, frame: bytes) -> None:
        """Send a frame that reveals the store's state as of ``zxid``, as soon as that state is durable."""
        if zxid <= self.durable_zxid:
            sink.put(frame)
            return
        assert zxid <= self._tree.zxid, "a frame reveals nothing that the tree has not made"
        self.held_bytes += len(frame)
        self._held.append((zxid, sink, frame))

    async def stop(self) -> None:
        """Finish the writes that are under way or requested, and end the thread."""
        while not self._failed and (self._write is not None or self._scheduled):
            if self._write is not None:
                await asyncio.wait([self._write])
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def _begin(self) -> None:
        self._scheduled = False
        if self._failed or self._tree.zxid == self.durable_zxid:
            return
        assert self._write is None, "one write at a time"
        zxid, (records, index) = self._tree.zxid, self._changes()
        self._writing_bytes, self._dirty_bytes = self._dirty_bytes, 0
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        self._write = loop.run_in_executor(self._thread, self._storage.write, records, index)
        self._write.add_done_callback(partial(self._written, zxid))

    def _changes(self) -> tuple[list[Change], list[IndexChange]]:
        """Return the records of every node and session touched since the last write, and the changes of the index."""
        records, index = self._nodes.begin_write(self._tree.zxid)
        for session_id in self._sessions:
            key, session = session_key(session_id), self._tree.sessions.get(session_id)
            records.append((key, encode_session(key, session) if session else None))
        records.append((STATE_KEY, encode_state(self._tree.zxid)))
        self._sessions.clear()
        return records, index

    def _written(self, zxid: int, write: asyncio.Future[None]) -> None:
        self._write = None
        self.held_bytes -= self._writing_bytes
        self._writing_bytes = 0
        if write.cancelled():  # the loop is closing
            return
        error = write.exception()
        if error is not None:
            # No client was told of what is held, and none will be.
            self._failed = True
            self._held.clear()
            self._on_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        assert zxid > self.durable_zxid, "zxids only grow"
        self.durable_zxid = zxid
        self._nodes.written()
        self.commits += 1
        self.latency.observe(asyncio.get_running_loop().time() - self._began)
        self._begin()
        self._release()
        self._on_durable()

    def _release(self) -> None:
        sinks: dict[ReplySink, None] = {}
        while self._held and self._held[0][0] <= self.durable_zxid:
            _, sink, frame = self._held.popleft()
            self.held_bytes -= len(frame)
            sink.put(frame)
            sinks[sink] = None
        assert self._held or self.held_bytes == self._dirty_bytes + self._writing_bytes, (
            "the count of held bytes is exact"
        )
        for sink in sinks:
            sink.flush()
