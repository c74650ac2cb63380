"""The MetadataStore on etcd."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence

from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError
from heliograph.metadata.backends.etcd.calls.calls import Page, ReadKind, ReadResult
from heliograph.metadata.backends.etcd.calls.event_loop import EtcdCallLoop
from heliograph.metadata.backends.etcd.session import EtcdSession
from heliograph.metadata.backends.etcd.transactions.observed_revisions import stat_of
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.keys import after, depth_of
from heliograph.metadata.backends.etcd.wire.limits import DEPTH_MAX
from heliograph.metadata.backends.etcd.wire.record import decode_session
from heliograph.metadata.errors import InvalidPathError, NoNodeError, SessionExpiredError
from heliograph.metadata.session.limits import CONNECT_MS_MAX
from heliograph.metadata.session.standing_watches import WatchHandle
from heliograph.metadata.session.store import SessionStore, parse_token
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Operation, Stat, Watch, Watcher
from heliograph.metadata.znode import ROOT, check_operation, check_path, is_due, parent_of

READS_AT_ONCE = 1_000  # of listed nodes


class EtcdStore(SessionStore):
    """One session with an etcd; a MetadataStore.

    It promises more than the port: reads see every change that was complete before them, and watches miss nothing while
    there is no connection. The revisions of etcd serve as zxids: they order all changes, and writes that one session
    asked for at once may share one. While SUSPENDED, a call waits up to CALL_WAIT_SECONDS_MAX for a connection.
    """

    def __init__(self, session: EtcdSession) -> None:
        super().__init__(session.clock)
        self._session = session
        self._calls = EtcdCallLoop(session)
        session.on_lost = self._calls.stop

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        session_timeout_ms: int = 10_000,
        connect_timeout_ms: int = CONNECT_MS_MAX,
        token: str | None = None,
    ) -> EtcdStore:
        """Begin a session, or take one over.

        Args:
            url: see ``EtcdAddress.parse``.
            session_timeout_ms: the requested timeout; etcd counts in seconds, and its minimum is two by default.
            connect_timeout_ms: how long to try, all endpoints together.
            token: of the session to take over, as for ``connect_store``.

        Raises:
            InvalidConfigError: the URL is malformed, or a file that it names cannot be read.
            ConnectionLossError: no endpoint could be reached in time; names each and its failure.
            NotPermittedError: the user or the password is refused.
            RecordError: the prefix holds data that this version cannot read.
            SessionExpiredError: the session to be taken over has ended, or its password is wrong.
            BadRequestError: the token is malformed.
        """
        address, known = EtcdAddress.parse(url), parse_token(token) if token else None
        return cls(await EtcdSession.open(address, session_timeout_ms, connect_timeout_ms, known))

    @property
    @override
    def session_token(self) -> str:
        return f"{self.session_id}:{self._session.password}"

    @override
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        result = await self._read(path, ReadKind.NODE, watcher, needs_node=True)
        return result.value, stat_of(result.node, result.family, result.count)

    @override
    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        result = await self._read(path, ReadKind.NODE, watcher, needs_node=False)
        return stat_of(result.node, result.family, result.count) if result.exists else None

    @override
    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        return list((await self._read(path, ReadKind.CHILDREN, watcher, needs_node=True)).names)

    @override
    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        return list((await self._read(path, Page(start, limit), None, needs_node=True)).names)

    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        self._clock.check()
        for index, operation in enumerate(operations):
            check_operation(operation, index)
            _check_depth(operation.path)
        return await self._calls.write(tuple(operations))

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self._clock.check()
        check_path(path)
        _check_depth(path)
        watch = await self._session.feed.add(WatchKind.RECURSIVE, path, watcher)
        try:
            await self._calls.alone(lambda _: self._session.feed.arm_below(watch))
        except BaseException:
            self._session.feed.remove(watch)
            raise
        return WatchHandle(lambda: self._session.feed.remove(watch))

    @override
    async def sync(self, path: str = "/") -> None:
        self._clock.check()
        check_path(path)
        _check_depth(path)
        if self._session.feed.has_watches:
            await self._calls.write((), is_barrier=True)
        else:
            await self._calls.read(ROOT, ReadKind.NODE)

    @override
    async def reapable(self, count_max: int) -> list[str]:
        self._clock.check()
        listed: list[str] = []

        async def run(connection: EtcdConnection) -> None:
            prefix = self._session.requests.keys.reaped
            request = connection.api.RangeRequest(key=prefix, range_end=after(prefix), keys_only=True)
            listed[:] = [kv.key[len(prefix) :].decode() for kv in (await connection.read(request)).kvs]

        await self._calls.alone(run)
        due: list[str] = []
        for start in range(0, len(listed), READS_AT_ONCE):
            paths = listed[start : start + READS_AT_ONCE]
            stats = await asyncio.gather(*(self.exists(path) for path in paths))
            due += [path for path, stat in zip(paths, stats, strict=True) if stat and is_due(stat, wall_ms())]
            if len(due) >= count_max:
                break
        return due[:count_max]

    @override
    async def end_session(self, token: str) -> None:
        self._clock.check()
        session_id, password = parse_token(token)
        await self._calls.alone(lambda connection: self._end(connection, session_id, password))

    @override
    async def close(self) -> None:
        await self._session.close()

    @override
    async def detach(self) -> None:
        await self._session.detach()

    async def _end(self, connection: EtcdConnection, session_id: int, password: str) -> None:
        key = self._session.requests.keys.session(session_id)
        answer = await connection.read(connection.api.RangeRequest(key=key))
        if not answer.kvs:
            return
        if not hmac.compare_digest(decode_session(key, answer.kvs[0].value).password.encode(), password.encode()):
            raise BadRequestError("the token's password is not this session's", field="token")
        try:
            await connection.revoke(session_id)
        except SessionExpiredError:
            return  # it ended meanwhile

    async def _read(self, path: str, kind: ReadKind | Page, watcher: Watcher | None, *, needs_node: bool) -> ReadResult:
        self._clock.check()
        check_path(path)
        _check_depth(path)
        result = await self._read_watched(path, kind, watcher, needs_node=needs_node)
        await self._wait_for_watches(path, result)
        if needs_node and not result.exists:
            raise NoNodeError(f"no node {path}")
        return result

    async def _read_watched(
        self, path: str, kind: ReadKind | Page, watcher: Watcher | None, *, needs_node: bool
    ) -> ReadResult:
        if watcher is None:
            return await self._calls.read(path, kind)
        feed = self._session.feed
        watch_kind = WatchKind.CHILD if kind is ReadKind.CHILDREN else WatchKind.DATA
        watch = await feed.add(watch_kind, path, watcher)

        def arm(result: ReadResult) -> None:
            if needs_node and not result.exists:
                feed.remove(watch)
            else:
                feed.arm(watch, result.revision, result.known)

        try:
            return await self._calls.read(path, kind, arm)
        except BaseException:
            feed.remove(watch)
            raise

    async def _wait_for_watches(self, path: str, result: ReadResult) -> None:
        """Wait until the watches were told of everything that the result reveals.

        A missing node reveals a deletion, whose revision is not kept. But the deletion changed the children of the
        nearest node above that still exists, or came before that node was created.
        """
        feed = self._session.feed
        if not feed.has_watches or result.revision <= feed.revision:
            return
        while not result.exists and path != ROOT:
            path = parent_of(path)
            result = await self._calls.read(path, ReadKind.NODE)
        await feed.reached(result.revealed)


def _check_depth(path: str) -> None:
    if depth_of(path) > DEPTH_MAX:
        raise InvalidPathError(f"a path has at most {DEPTH_MAX} names", field="path", limit=f"{DEPTH_MAX} names")
