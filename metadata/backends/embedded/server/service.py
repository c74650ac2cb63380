"""The requests of the embedded server: each is decided at once, in memory; the committer releases its answer later.

If a request needs a node that RocksDB would have to read from the disk, a thread reads the node and the request begins
again. A long list of children is read from one state of the store, a page in each step of the loop. The later requests
of the connection wait for either.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import AuthenticationError, BadRequestError, HeliographError, ResourceError
from heliograph.base.guard.handshake import ServerHandshake
from heliograph.base.guard.listener import ListenerGuard
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.version import own_release, require_meeting
from heliograph.metadata.backends.embedded.limits import (
    HELD_BYTES_MAX,
    OPERATIONS_MAX,
    READERS_MAX,
    REAPABLE_MAX,
    RESET_WATCHES_MAX,
    SESSIONLESS_MS_MAX,
    WATCHES_PER_CONNECTION_MAX,
    ServerLimits,
)
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    NEEDS,
    OK,
    PROTOCOL_VERSION,
    VERSION_FIELD,
    EmbeddedOp,
    Notice,
    check_arguments,
    decode_operation,
    encode_answer,
    encode_error,
    encode_frame,
    encode_listing,
    encode_names,
    encode_stat,
    event_code,
    says_release,
    split_version,
    watched_path,
)
from heliograph.metadata.backends.embedded.server.committer import Committer
from heliograph.metadata.backends.embedded.server.connection import MARK, EmbeddedConnection, ServerWatch
from heliograph.metadata.backends.embedded.server.nodes import NotInMemory, StoredNodes
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.errors import (
    InvalidPathError,
    MetadataProtocolError,
    RecordError,
    SessionExpiredError,
    ValueTooLargeError,
)
from heliograph.metadata.session.watches import WatchKind, WatchTable, missed_event
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Stat, WatchEvent
from heliograph.metadata.tree import TreeSession, TreeTransaction, ZnodeTree
from heliograph.metadata.znode import Znode, check_path, parent_of

quiet = QuietLog(logging.getLogger(__name__))

_READS = (EmbeddedOp.GET, EmbeddedOp.EXISTS, EmbeddedOp.CHILDREN)
OWNER_BYTES_MAX = 64  # of the name of a session's owner
Answer = tuple[Any, int]  # a result and the zxid that it reveals

# Requests that need all ephemerals of a session. Apart from these and NEEDS none waits for a thread.
_ENDS = (EmbeddedOp.CLOSE, EmbeddedOp.END_SESSION)


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of a request for more children than a page holds: their names as of the request, not read yet."""

    names: Iterator[str]
    node: Znode


class Service:
    """The tree of one server, its watches and its clients."""

    def __init__(
        self,
        tree: ZnodeTree,
        nodes: StoredNodes,
        storage: TreeStorage,
        limits: ServerLimits,
        now_ms: Callable[[], int],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.tree = tree
        self.nodes = nodes
        self.committer = Committer(tree, nodes, storage, self._resume_readers, on_failure)
        self.connections: set[EmbeddedConnection] = set()
        self.guard = ListenerGuard("metadata", limits.listener)
        self.disk_waits = 0  # requests that waited for a thread to read
        self._limits = limits
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._storage = storage
        self._readers = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="metadata-read")
        self._missing: list[EmbeddedConnection] = []  # whose first unhandled request needs nodes not in memory
        self._reads = 0  # under way, 0 <= _reads <= READERS_MAX
        self._listings: set[asyncio.Task[None]] = set()
        self._expiring: set[int] = set()  # sessions whose time is up, and whose ephemerals a thread reads
        self._is_stopped = False
        self._watches: WatchTable[ServerWatch] = WatchTable()
        self._by_session: dict[int, EmbeddedConnection] = {}
        self._handlers: dict[int, tuple[tuple[type, ...], Callable[..., Answer]]] = {
            EmbeddedOp.PING: ((), lambda _: (None, 0)),
            EmbeddedOp.APPLY: ((list,), self._apply),
            EmbeddedOp.GET: ((str, int), self._get),
            EmbeddedOp.EXISTS: ((str, int), self._exists),
            EmbeddedOp.CHILDREN: ((str, int), self._children),
            EmbeddedOp.CHILDREN_FROM: ((str, str, int), self._children_from),
            EmbeddedOp.WATCH: ((str, int), self._watch),
            EmbeddedOp.UNWATCH: ((int,), self._unwatch),
            EmbeddedOp.RESET_WATCHES: ((list,), self._reset_watches),
            EmbeddedOp.SYNC: ((str,), self._sync),
            EmbeddedOp.END_SESSION: ((int, str), self._end_session),
            EmbeddedOp.CLOSE: ((), self._close),
            EmbeddedOp.REAPABLE: ((int,), self._reapable),
        }

    @property
    def watches(self) -> int:
        return len(self._watches)

    def handle(self, connection: EmbeddedConnection, frame: list[Any]) -> None:
        """Apply a request and answer it, once everything that the answer reveals is durable.

        Raises:
            MetadataProtocolError: the frame is no request; the connection cannot be used any further.
        """
        try:
            self._handle(connection, frame)
        except NotInMemory:
            self.disk_waits += 1
            connection.pause(frame)
            self._missing.append(connection)
            if len(self._missing) == 1:  # at the end of this round of the loop, so that all misses of it share a read
                asyncio.get_running_loop().call_soon(self._read)
        except ResourceError as error:  # the disk failed under a read
            self._on_failure(error)
        finally:
            self.nodes.waits = True

    def _handle(self, connection: EmbeddedConnection, frame: list[Any]) -> None:
        request_id, op, *arguments = frame
        try:
            if connection.handshake is not None:
                self._greet(connection, connection.handshake, frame)
                return
            # A request that was read for does not wait again: what the cache has lost since is read at once.
            self.nodes.waits = not (op in NEEDS or op in _ENDS) or frame is connection.read_for
            if op == EmbeddedOp.RESUME:
                check_arguments(arguments, (str, int, int, str, str, bool))
                result, zxid = self._resume(connection, *arguments)
            elif op == EmbeddedOp.HELLO:
                check_arguments(arguments, (str, int, int, int, str))
                result, zxid = self._hello(connection, *arguments)
            else:
                types, handler = self._handlers.get(op, ((), None))
                if op == EmbeddedOp.CHALLENGE:  # there is no secret here, and the client has one
                    connection.put(encode_frame([request_id, OK, b""]))
                    return
                if handler is None:
                    raise MetadataProtocolError(f"unknown request {op}")
                check_arguments(arguments, types)
                if not self.tree.touch(connection.session_id, self._now_ms()):
                    raise SessionExpiredError("the session is over")
                result, zxid = handler(connection, *arguments)
            if isinstance(result, Listing):
                connection.pause(withholds=True)
                self.committer.send(connection, self.tree.zxid, MARK)  # behind what tells of earlier changes
                listing = asyncio.get_running_loop().create_task(self._list(connection, request_id, result, zxid))
                self._listings.add(listing)
                listing.add_done_callback(self._listings.discard)
                return
            answer = encode_answer([request_id, OK, result], joins_answers=connection.is_told_release)
        except (MetadataProtocolError, ResourceError):
            raise
        except HeliographError as error:
            if isinstance(error, RecordError):
                quiet.warning("record", "a record of the metadata store is damaged: %s", error)
            # An error may reveal any of the changes that are not durable yet.
            answer, zxid = encode_error(request_id, error), self.tree.zxid
            if op in _READS:
                self._unwatch(connection, arguments[1])
        self.committer.send(connection, zxid, answer)
        if self.committer.held_bytes > HELD_BYTES_MAX:  # I15
            connection.hold_back()

    async def stop(self) -> None:
        """Finish the writes, and the reads that are under way. Nothing is handled any more."""
        self._is_stopped = True
        for listing in list(self._listings):
            await end_task(listing)
        await self.committer.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._readers.shutdown)

    def _read(self) -> None:
        """Let a thread read the nodes that requests miss; if no thread is free, the next free one does."""
        self._missing = [connection for connection in self._missing if not connection.is_closing]
        if not self._missing or self._reads == READERS_MAX:
            return
        missing, self._missing = self._missing, []
        self._reads += 1
        # The requests that wait behind the first of a connection would be the next ones that miss.
        waiting = [(connection, frame) for connection in missing for frame in connection.unhandled]
        paths = [path for connection, frame in waiting for path in self._nodes_needed(connection, frame)]
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._storage.warm, paths)
        reading.add_done_callback(lambda reading: self._after_read(missing, reading))

    def _after_read(self, missing: list[EmbeddedConnection], reading: asyncio.Future[None]) -> None:
        """Handle requests again after a thread has read the nodes that they need."""
        self._reads -= 1
        if reading.cancelled():  # the loop is closing
            return
        error = reading.exception()
        if error is not None:
            self._on_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        for connection in missing:
            connection.read_for = connection.unhandled[0]
            self._proceed(connection)
        self._read()

    def _nodes_needed(self, connection: EmbeddedConnection, frame: list[Any]) -> list[str]:
        """Return the paths of the nodes that a request reads first; empty if it cannot be handled."""
        _, op, *arguments = frame
        if op not in NEEDS and op not in _ENDS:
            return []
        try:
            check_arguments(arguments, self._handlers[op][0])
            if op in _ENDS:
                return self._nodes_of_session(arguments[0] if arguments else connection.session_id)
            paths = NEEDS[op](arguments)
            for path in paths:
                check_path(path)
        except (MetadataProtocolError, InvalidPathError):  # its handler says so
            return []
        return paths

    def _nodes_of_session(self, session_id: int) -> list[str]:
        """Return the paths of the nodes that the end of a session deletes or changes. There may be many."""
        try:
            found = self.nodes.ephemerals(session_id) if session_id in self.tree.sessions else []
        except ResourceError as error:  # the disk failed
            self._on_failure(error)
            return []
        return [each for path in found for each in (path, parent_of(path))]

    async def _list(self, connection: EmbeddedConnection, request_id: int, listing: Listing, zxid: int) -> None:
        """Answer with a long list of children, a page in each step of the loop."""
        pieces, stat = [], listing.node.stat()
        try:
            while page := list(islice(listing.names, CHILDREN_PAGE_MAX)):
                pieces.append(encode_names(page))
                await asyncio.sleep(0)
            answer = encode_listing(
                request_id, pieces, stat.num_children, stat, joins_answers=connection.is_told_release
            )
        except ResourceError as error:
            self._on_failure(error)
            return
        except HeliographError as error:
            answer = encode_error(request_id, error)
        before, after = connection.withheld()
        for frame in before:
            connection.put(frame)
        self.committer.send(connection, zxid, answer)
        for frame in after:
            connection.put(frame)
        self._proceed(connection)

    def _proceed(self, connection: EmbeddedConnection) -> None:
        connection.proceed()
        connection.read_for = None
        self._resume_readers()

    def expire_sessions(self) -> None:
        """End the sessions whose time is up, and close connections that have had no session for too long."""
        now_ms = self._now_ms()
        for connection in list(self.connections):
            if not connection.is_reading:  # it is not read, so its silence means nothing
                self.tree.touch(connection.session_id, now_ms)
            if connection.session_id in self.tree.sessions:
                connection.alive_ms = now_ms
            elif now_ms - connection.alive_ms > SESSIONLESS_MS_MAX:
                connection.abort()
        for session_id in self.tree.expired(now_ms):
            if session_id not in self._expiring and not self._expire(session_id, waits=False):
                return

    def _expire(self, session_id: int, *, waits: bool) -> bool:
        """End a session whose time is up. Return whether the store can be served any further.

        Args:
            waits: False: if its ephemerals are not all in memory, a thread reads them first.
        """
        self.nodes.waits = waits
        try:
            self._end(session_id)
        except NotInMemory:
            self.disk_waits += 1
            self._expiring.add(session_id)
            paths = self._nodes_of_session(session_id)
            reading = asyncio.get_running_loop().run_in_executor(self._readers, self._storage.warm, paths)
            reading.add_done_callback(lambda reading: self._expire_after_read(session_id, reading))
        except (RecordError, ResourceError) as error:  # its ephemerals cannot be deleted: the store is not served
            self._on_failure(error)
            return False
        finally:
            self.nodes.waits = True
        return True

    def _expire_after_read(self, session_id: int, reading: asyncio.Future[None]) -> None:
        """End a session after a thread has read its ephemerals, unless its client was heard meanwhile."""
        self._expiring.discard(session_id)
        if self._is_stopped or reading.cancelled():
            return
        if (error := reading.exception()) is not None:
            self._on_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        elif session_id in self.tree.expired(self._now_ms()):
            self._expire(session_id, waits=True)

    def on_connected(self, connection: EmbeddedConnection) -> None:
        """Add a client's connection."""
        connection.alive_ms = self._now_ms()
        if not self.guard.admit(connection.address):  # I15
            connection.abort()
            return
        self.connections.add(connection)

    def on_disconnected(self, connection: EmbeddedConnection) -> None:
        """Remove a client's connection and its watches. Its session stands until it expires."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.guard.leave(connection.address)
        self._drop_watches(connection)
        if self._by_session.get(connection.session_id) is connection:
            del self._by_session[connection.session_id]

    def _greet(self, connection: EmbeddedConnection, handshake: ServerHandshake, frame: list[Any]) -> None:
        """Serve a step of the handshake. A client that skips it or fails is told why, and its connection ends.

        Raises:
            MetadataProtocolError: the frame is malformed.
        """
        request_id, op, *arguments = frame
        if op == EmbeddedOp.CHALLENGE and not handshake.is_challenged:
            check_arguments(arguments, (str, int, bytes))
            magic, version, nonce = arguments
            self._check_greeting(connection, magic, version)
            challenge = handshake.challenge(nonce)
            if not challenge:
                raise MetadataProtocolError("a nonce of the wrong size")
            connection.put(encode_frame([request_id, OK, challenge]))
            return
        if op == EmbeddedOp.PROVE:
            check_arguments(arguments, (bytes,))
            if handshake.accepts(arguments[0]):
                connection.handshake = None
                connection.put(encode_frame([request_id, OK, None]))
                return
        quiet.warning(
            "secret", "metadata refused the connection from %s: it does not know the cluster's secret", connection.peer
        )
        refusal = AuthenticationError(
            "the metadata store asks for the cluster's secret: give the one it has (HELIOGRAPH_CLUSTER_SECRET)",
            field="cluster_secret",
        )
        connection.put(encode_error(request_id, refusal))
        connection.finish()

    def _hello(
        self, connection: EmbeddedConnection, magic: str, version: int, timeout_ms: int, session_id: int, password: str
    ) -> Answer:
        self._check_greeting(connection, magic, version)
        session = self._known_session(session_id, password, "") if session_id else self._new_session(timeout_ms)
        return self._attach(connection, session)

    def _resume(
        self,
        connection: EmbeddedConnection,
        magic: str,
        version: int,
        session_id: int,
        password: str,
        owner: str,
        takes_over: bool,
    ) -> Answer:
        """Attach the owner of a session again, or make the client its owner."""
        self._check_greeting(connection, magic, version)
        if not 0 < len(owner.encode("utf-8", "surrogatepass")) <= OWNER_BYTES_MAX or not owner.isascii():
            raise MetadataProtocolError(f"{owner[:80]!r} is no name of an owner")
        session = self._known_session(session_id, password, None if takes_over else owner)
        if takes_over and session.owner != owner:
            self._publish(self.tree.take_over(session_id, owner))
            earlier = self._by_session.get(session_id)
            if earlier is not None:  # its owner is told first, so that it does not attach again
                earlier.put(encode_frame([0, Notice.SESSION_ENDED]))
                earlier.finish()
        return self._attach(connection, session)

    @staticmethod
    def _check_greeting(connection: EmbeddedConnection, magic: str, version: int) -> None:
        if magic != MAGIC or connection.session_id:
            raise MetadataProtocolError("a connection begins with one HELLO or RESUME")
        protocol, release = split_version(version)
        if protocol != PROTOCOL_VERSION:
            raise BadRequestError(
                f"the client speaks version {protocol} of the metadata protocol, this server speaks "
                f"{PROTOCOL_VERSION}: use the same release on both sides",
                field=VERSION_FIELD,
                limit=str(PROTOCOL_VERSION),
            )
        require_meeting(release, "the client of the metadata store")
        connection.is_told_release = says_release(version)

    def _attach(self, connection: EmbeddedConnection, session: TreeSession) -> Answer:
        session_id = session.session_id
        earlier = self._by_session.pop(session_id, None)
        if earlier is not None:
            # Its requests that were not read must not be applied after those of the new connection.
            earlier.session_id = 0
            if not earlier.is_closing:
                earlier.abort()
            self.on_disconnected(earlier)
        assert session_id in self.tree.sessions, "the session stands"
        assert session_id not in self._by_session, "a session has one connection"
        connection.attached(session_id)
        self._by_session[session_id] = connection
        release = [own_release().number] if connection.is_told_release else []
        return [session_id, session.password, session.timeout_ms, *release], self.tree.zxid

    def _known_session(self, session_id: int, password: str, owner: str | None) -> TreeSession:
        """Return the session, if the password is right and the client is its owner; None: any client may be."""
        session = self.tree.sessions.get(session_id)
        if session is None or not _same(session.password, password):
            raise SessionExpiredError(f"session {session_id:#x} is over")
        if owner is not None and session.owner != owner:
            raise SessionExpiredError(f"another client has taken session {session_id:#x} over")
        self.tree.touch(session_id, self._now_ms())
        return session

    def _new_session(self, timeout_ms: int) -> TreeSession:
        session_id = 0
        while session_id == 0 or session_id in self.tree.sessions:
            session_id = secrets.randbits(62)
        timeout_ms = min(max(timeout_ms, self._limits.session_timeout_ms_min), self._limits.session_timeout_ms_max)
        self._publish(self.tree.open_session(session_id, secrets.token_hex(16), timeout_ms, self._now_ms()))
        return self.tree.sessions[session_id]

    def _apply(self, connection: EmbeddedConnection, items: list[Any]) -> Answer:
        if len(items) > OPERATIONS_MAX:  # I15
            raise ValueTooLargeError(
                f"a transaction of {len(items)} operations", field="operations", limit=f"{OPERATIONS_MAX} operations"
            )
        operations = [decode_operation(item) for item in items]
        transaction = self.tree.apply(connection.session_id, operations, wall_ms())
        self._publish(transaction, sum([len(getattr(operation, "value", None) or b"") for operation in operations]))
        results = [encode_stat(result) if isinstance(result, Stat) else result for result in transaction.results]
        return results, transaction.zxid

    def _get(self, connection: EmbeddedConnection, path: str, watch_id: int) -> Answer:
        node = self.tree.node(path)
        self._set_watch(connection, WatchKind.DATA, path, watch_id)
        return [node.value, encode_stat(node.stat())], node.last_zxid

    def _exists(self, connection: EmbeddedConnection, path: str, watch_id: int) -> Answer:
        node = self.tree.find(path)
        self._set_watch(connection, WatchKind.DATA, path, watch_id)
        if node is None:
            return None, self.tree.zxid
        return encode_stat(node.stat()), node.last_zxid

    def _children(self, connection: EmbeddedConnection, path: str, watch_id: int) -> Answer:
        node = self.tree.node(path)
        self._set_watch(connection, WatchKind.CHILD, path, watch_id)
        if node.child_count > CHILDREN_PAGE_MAX:
            return Listing(self.nodes.names(path, ""), node), node.last_zxid
        return [self.tree.children(path), encode_stat(node.stat())], node.last_zxid

    def _children_from(self, connection: EmbeddedConnection, path: str, start: str, limit: int) -> Answer:
        limit = max(1, min(limit, CHILDREN_PAGE_MAX))  # I15
        return self.tree.children_from(path, start, limit), self.tree.node(path).last_zxid

    def _watch(self, connection: EmbeddedConnection, path: str, watch_id: int) -> Answer:
        check_path(path)
        self._set_watch(connection, WatchKind.RECURSIVE, path, watch_id)
        return None, self.tree.zxid

    def _unwatch(self, connection: EmbeddedConnection, watch_id: int) -> Answer:
        watch = connection.watches.pop(watch_id, None)
        if watch is not None:
            self._watches.remove(watch)
        return None, 0

    def _reset_watches(self, connection: EmbeddedConnection, items: list[Any]) -> Answer:
        """Set a reconnected client's watches again, firing those whose node changed while it was away."""
        if len(items) > RESET_WATCHES_MAX:
            raise MetadataProtocolError(f"a client sets at most {RESET_WATCHES_MAX} watches again in a request")
        nodes = [self.tree.find(watched_path(item)) for item in items]  # all of them before anything is set
        for item, node in zip(items, nodes, strict=True):
            watch_id, number, path, czxid, zxid = item
            if number not in WatchKind.__members__.values():
                raise MetadataProtocolError(f"unknown kind of watch {number}")
            kind = WatchKind(number)
            missed = missed_event(kind, node, czxid, zxid)
            if missed is None:
                self._set_watch(connection, kind, path, watch_id)
            else:
                self._tell(connection, watch_id, WatchEvent(missed, path), self.tree.zxid)
        return None, self.tree.zxid

    def _sync(self, connection: EmbeddedConnection, path: str) -> Answer:
        check_path(path)
        return None, self.tree.zxid

    def _reapable(self, connection: EmbeddedConnection, count: int) -> Answer:
        return self.tree.reapable(wall_ms(), max(0, min(count, REAPABLE_MAX))), self.tree.zxid

    def _end_session(self, connection: EmbeddedConnection, session_id: int, password: str) -> Answer:
        session = self.tree.sessions.get(session_id)
        if session is not None:
            if not _same(session.password, password):
                raise BadRequestError("the token's password is not this session's", field="token")
            self._end(session_id)
        return None, self.tree.zxid

    def _close(self, connection: EmbeddedConnection) -> Answer:
        assert self._by_session[connection.session_id] is connection, "a session has one connection"
        transaction = self.tree.end_session(connection.session_id, wall_ms())  # raises before anything has changed
        del self._by_session[connection.session_id]
        self._drop_watches(connection)
        self._publish(transaction)
        return None, transaction.zxid

    def _end(self, session_id: int) -> None:
        transaction = self.tree.end_session(session_id, wall_ms())
        connection = self._by_session.pop(session_id, None)
        if connection is not None:
            self._drop_watches(connection)
            # I13: the owner is told first.
            self.committer.send(connection, transaction.zxid, encode_frame([0, Notice.SESSION_ENDED]))
        self._publish(transaction)

    def _publish(self, transaction: TreeTransaction, value_bytes: int = 0) -> None:
        assert transaction.zxid == self.tree.zxid, "transactions are published in order"
        self.committer.record(transaction, value_bytes)
        for event in transaction.events:
            for watch in self._watches.fire(event):
                if watch.kind is not WatchKind.RECURSIVE:
                    del watch.connection.watches[watch.watch_id]
                self._tell(watch.connection, watch.watch_id, event, transaction.zxid)

    def _tell(self, connection: EmbeddedConnection, watch_id: int, event: WatchEvent, zxid: int) -> None:
        frame = encode_frame([0, Notice.EVENT, watch_id, event_code(event.type), event.path])
        self.committer.send(connection, zxid, frame)

    def _drop_watches(self, connection: EmbeddedConnection) -> None:
        for watch in connection.watches.values():
            self._watches.remove(watch)
        connection.watches.clear()

    def _set_watch(self, connection: EmbeddedConnection, kind: WatchKind, path: str, watch_id: int) -> None:
        if watch_id == 0:
            return
        if watch_id in connection.watches:
            raise MetadataProtocolError(f"watch {watch_id} is set already")
        if len(connection.watches) >= WATCHES_PER_CONNECTION_MAX:  # I15
            raise BadRequestError(
                "too many watches", field="watcher", limit=f"{WATCHES_PER_CONNECTION_MAX} watches of one session"
            )
        connection.watches[watch_id] = self._watches.add(ServerWatch(kind, path, connection, watch_id))

    def _resume_readers(self) -> None:
        if self.committer.held_bytes <= HELD_BYTES_MAX // 2:
            for connection in self.connections:
                if connection.is_held_back and not connection.is_paused:
                    connection.let_go()


def _same(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))
