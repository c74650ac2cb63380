"""The MetadataStore on etcd."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from heliograph.errors import BadRequestError
from metadata.errors import InvalidPathError, NoNodeError, SessionExpiredError
from metadata.etcd.address import EtcdAddress
from metadata.etcd.calls import ReadKind, ReadResult
from metadata.etcd.connection import Connection
from metadata.etcd.keys import depth_of
from metadata.etcd.limits import DEPTH_MAX
from metadata.etcd.pump import Pump
from metadata.etcd.record import decode_session
from metadata.etcd.seen import stat_of
from metadata.etcd.session import Session
from metadata.etcd.watchboard import Standing
from metadata.session_limits import CONNECT_MS_MAX
from metadata.session_store import SessionStore
from metadata.store import Operation, Stat, Watch, Watcher
from metadata.watches import WatchKind
from metadata.znode import ROOT, check_operation, check_path, parent_of


class EtcdStore(SessionStore):
    """One session with an etcd; a MetadataStore.

    Stronger than it must be: reads see every change that was complete before them, and watches miss nothing while the
    connection is away. The revisions of etcd serve as zxids: they order all changes, and writes that one session asked
    for at once may share one. While SUSPENDED, a call waits up to
    ``session_limits.CALL_WAIT_SECONDS_MAX`` for a connection.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.clock)
        self._session = session
        self._pump = Pump(session)
        session.on_lost = self._pump.stop

    @classmethod
    async def connect(
        cls, url: str, *, session_timeout_ms: int = 10_000, connect_timeout_ms: int = CONNECT_MS_MAX
    ) -> EtcdStore:
        """Begin a session.

        Args:
            url: see ``EtcdAddress.parse``.
            session_timeout_ms: asked for; etcd counts in seconds and has a minimum (two, as it comes).
            connect_timeout_ms: how long to try, all endpoints together.

        Raises:
            InvalidConfigError: the URL is malformed, or a file that it names cannot be read.
            ConnectionLossError: no endpoint could be reached in time; names each and its failure.
            NotPermittedError: the user or the password is refused.
            RecordError: the prefix holds what this version cannot read.
        """
        return cls(await Session.open(EtcdAddress.parse(url), session_timeout_ms, connect_timeout_ms))

    @property
    def session_token(self) -> str:
        """See MetadataStore."""
        return f"{self.session_id}:{self._session.password}"

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """See MetadataStore."""
        result = await self._read(path, ReadKind.NODE, watcher, needs_node=True)
        return result.value, stat_of(result.node, result.family, result.count)

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """See MetadataStore."""
        result = await self._read(path, ReadKind.NODE, watcher, needs_node=False)
        return stat_of(result.node, result.family, result.count) if result.exists else None

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """See MetadataStore."""
        return list((await self._read(path, ReadKind.CHILDREN, watcher, needs_node=True)).names)

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """See MetadataStore."""
        self._check_session()
        for index, operation in enumerate(operations):
            check_operation(operation, index)
            _check_depth(operation.path)
        return await self._pump.write(tuple(operations))

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """See MetadataStore. The nodes at ``path`` and below are remembered, to tell of changes that were cut off."""
        self._check_session()
        check_path(path)
        _check_depth(path)
        standing = await self._session.feed.add(WatchKind.RECURSIVE, path, watcher)
        try:
            await self._pump.alone(lambda _: self._session.feed.arm_below(standing))
        except BaseException:
            self._session.feed.remove(standing)
            raise
        return _EtcdWatch(self._session, standing)

    async def sync(self, path: str = "/") -> None:
        """See MetadataStore."""
        self._check_session()
        check_path(path)
        _check_depth(path)
        if self._session.feed.has_watches:
            await self._pump.write((), is_barrier=True)
        else:
            await self._pump.read(ROOT, ReadKind.NODE)

    async def end_session(self, token: str) -> None:
        """See MetadataStore."""
        self._check_session()
        number, _, password = token.partition(":")
        if not number.isdigit() or not password:
            raise BadRequestError("a session token looks like 'id:password'", field="token")
        await self._pump.alone(lambda connection: self._end(connection, int(number), password))

    async def close(self) -> None:
        """See MetadataStore."""
        await self._session.close()

    async def _end(self, connection: Connection, session_id: int, password: str) -> None:
        key = self._session.requests.keys.session(session_id)
        answer = await connection.read(connection.api.RangeRequest(key=key))
        if not answer.kvs:
            return
        if not hmac.compare_digest(decode_session(key, answer.kvs[0].value).password.encode(), password.encode()):
            raise BadRequestError("the token's password is not this session's", field="token")
        try:
            await connection.revoke(session_id)
        except SessionExpiredError:
            return  # it ended by itself

    async def _read(self, path: str, kind: ReadKind, watcher: Watcher | None, *, needs_node: bool) -> ReadResult:
        self._check_session()
        check_path(path)
        _check_depth(path)
        result = await self._read_watched(path, kind, watcher, needs_node=needs_node)
        await self._be_told_first(path, result)
        if needs_node and not result.exists:
            raise NoNodeError(f"no node {path}")
        return result

    async def _read_watched(
        self, path: str, kind: ReadKind, watcher: Watcher | None, *, needs_node: bool
    ) -> ReadResult:
        if watcher is None:
            return await self._pump.read(path, kind)
        feed = self._session.feed
        watch_kind = WatchKind.CHILD if kind is ReadKind.CHILDREN else WatchKind.DATA
        standing = await feed.add(watch_kind, path, watcher)

        def arm(result: ReadResult) -> None:
            if needs_node and not result.exists:
                feed.remove(standing)
            else:
                feed.arm(standing, result.revision, result.known)

        try:
            return await self._pump.read(path, kind, arm)
        except BaseException:
            feed.remove(standing)
            raise

    async def _be_told_first(self, path: str, result: ReadResult) -> None:
        """Wait until the watches were told of everything that the result shows.

        That a node is missing shows a deletion, whose revision nothing keeps; but it changed the children of the
        nearest node above that is still there, or came before that node.
        """
        feed = self._session.feed
        if not feed.has_watches or result.revision <= feed.revision:
            return
        while not result.exists and path != ROOT:
            path = parent_of(path)
            result = await self._pump.read(path, ReadKind.NODE)
        await feed.reached(result.revealed)


class _EtcdWatch:
    def __init__(self, session: Session, standing: Standing) -> None:
        self._session = session
        self._standing = standing

    def cancel(self) -> None:
        """See Watch."""
        self._session.feed.remove(self._standing)


def _check_depth(path: str) -> None:
    if depth_of(path) > DEPTH_MAX:
        raise InvalidPathError(f"a path has at most {DEPTH_MAX} names", field="path", limit=f"{DEPTH_MAX} names")
