"""The MetadataStore on a ZooKeeper ensemble."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.protocol.serialization import Sync
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from typing_extensions import override

from heliograph.base.backoff import Backoff
from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.metadata.backends.zookeeper import requests
from heliograph.metadata.backends.zookeeper.address import REQUEST_BYTES_MAX
from heliograph.metadata.backends.zookeeper.connection import ZooKeeperConnection
from heliograph.metadata.backends.zookeeper.session import ZooKeeperSession
from heliograph.metadata.errors import ConnectionLossError, ValueTooLargeError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import (
    ANSWER_SECONDS_MAX,
    CONNECT_MS_MAX,
    RECONNECT_PAUSE_MS,
    RECONNECT_PAUSE_MS_MAX,
)
from heliograph.metadata.session.standing_watches import WatchHandle
from heliograph.metadata.session.store import SessionStore
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Operation, Reap, Stat, Watch, Watcher
from heliograph.metadata.znode import check_operation, check_path

OVERHEAD_BYTES = 128  # about what an operation adds to its path and its value
_TOKEN = re.compile(r"(-?\d+):([0-9a-f]{2,})")


class ZooKeeperStore(SessionStore):
    """One session with ZooKeeper 3.6 or later; a MetadataStore.

    While SUSPENDED, a call waits up to CALL_WAIT_SECONDS_MAX for the connection to come back. With
    credentials, only their user may read and change the nodes that are created; without, every client may.
    """

    def __init__(self, session: ZooKeeperSession, endpoints: Sequence[str], auth: Sequence[tuple[str, str]]) -> None:
        super().__init__(session.clock)
        self._session = session
        self._endpoints = endpoints
        self._auth = auth
        self._listing: _Listing | None = None  # the latest one that had more than a page
        self._acl = CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[tuple[str, int]],
        *,
        session_timeout_ms: int = 10_000,
        connect_timeout_ms: int = CONNECT_MS_MAX,
        credentials: tuple[str, str] | None = None,
        token: str | None = None,
    ) -> ZooKeeperStore:
        """Begin a session, or take one over.

        Args:
            endpoints: host and port of each server.
            session_timeout_ms: the requested timeout; the server keeps it within its bounds.
            connect_timeout_ms: how long to try to connect.
            credentials: user and password for ZooKeeper's "digest" scheme.
            token: of the session to take over, as for ``connect_store``.

        Raises:
            ConnectionLossError: no server could be reached in time; lists each with its failure.
            NotPermittedError: the credentials are refused.
            SessionExpiredError: the session to be taken over has ended, or its password is wrong.
            BadRequestError: the token is malformed.
        """
        auth = [("digest", ":".join(credentials))] if credentials is not None else []
        addresses = [f"{host}:{port}" for host, port in endpoints]
        session = await ZooKeeperSession.open(
            addresses,
            session_timeout_ms,
            connect_timeout_ms,
            auth,
            is_movable=token is not None,
            client_id=_client_id(token) if token else None,
        )
        return cls(session, addresses, auth)

    @property
    @override
    def session_token(self) -> str:
        return f"{self.session_id}:{self._session.password.hex()}"

    @override
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        check_path(path)
        if watcher is not None:
            value, stat = await self._session.watched(WatchKind.DATA, path, watcher, with_value=True)
        else:
            value, stat = await self._session.call(path, partial(requests.get, path, watched=False))
        return value, requests.stat_of(stat)

    @override
    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        stat = await self._read(WatchKind.DATA, path, watcher)
        return None if stat is None else requests.stat_of(stat)

    @override
    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        names, _ = await self._read(WatchKind.CHILD, path, watcher)
        return sorted(names)

    @override
    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        # The protocol has no pages, so a listing is kept until the list of children changes.
        stat = await self.exists(path)
        known = self._listing
        if stat is None or known is None or known.path != path or known.pzxid != (stat.czxid, stat.pzxid):
            names, found = await self._read(WatchKind.CHILD, path, None)
            stat = requests.stat_of(found)
            known = _Listing(path, (stat.czxid, stat.pzxid), await asyncio.to_thread(sorted, names))
            self._listing = known if len(names) > limit else None
        at = bisect.bisect_left(known.names, start)
        return known.names[at : at + limit]

    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        for index, operation in enumerate(operations):
            check_operation(operation, index)
            if isinstance(operation, Reap):
                raise UnsupportedError(f"{operation.path}: only ZooKeeper itself reaps nodes")
        if not operations:
            self._clock.check()
            return []
        size = sum(_size_of(operation) for operation in operations)
        if size > REQUEST_BYTES_MAX:
            raise ValueTooLargeError(
                f"a request of {size} bytes is above the limit", field="operations", limit=f"{REQUEST_BYTES_MAX} bytes"
            )
        made = partial(requests.transaction, operations, self._acl)
        answers = await self._session.call(operations[0].path, made, size=size)
        return requests.results_of(operations, answers)

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """Set a recursive watch.

        Raises:
            UnsupportedError: the server is older than 3.6.
        """
        check_path(path)
        watch = await self._session.watch(path, watcher)
        return WatchHandle(lambda: self._session.unwatch(watch))

    @override
    async def sync(self, path: str = "/") -> None:
        check_path(path)
        await self._session.call(path, partial(Sync, path))

    @override
    async def reapable(self, count_max: int) -> list[str]:
        self._clock.check()
        return []  # ZooKeeper's leader reaps

    @override
    async def end_session(self, token: str) -> None:
        # ZooKeeper does not tell a wrong password from a session that is over: nothing happens.
        client_id = _client_id(token)
        self._clock.check()
        await _end(self._endpoints, self._auth, client_id)

    @override
    async def close(self) -> None:
        await self._session.close()

    @override
    async def detach(self) -> None:
        await self._session.detach()

    async def _write(self, operation: Operation) -> str | Stat | None:
        check_operation(operation)
        made = partial(requests.write, operation, self._acl)
        answer = await self._session.call(operation.path, made, size=_size_of(operation))
        return requests.result_of(operation, answer)

    async def _read(self, kind: WatchKind, path: str, watcher: Watcher | None) -> Any:
        check_path(path)
        if watcher is not None:
            return await self._session.watched(kind, path, watcher)
        return await self._session.call(path, partial(requests.read, kind, path, watched=False))


@dataclass(frozen=True, slots=True)
class _Listing:
    """The sorted names of a node's children, with the zxids that created the node and last changed its children."""

    path: str
    pzxid: tuple[int, int]
    names: list[str]


async def _end(endpoints: Sequence[str], auth: Sequence[tuple[str, str]], client_id: tuple[int, bytes]) -> None:
    """Take a session over and close it. Nothing happens if it is over or has another password.

    Raises:
        ConnectionLossError: no server could be reached.
    """
    pauses = Backoff(RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX)
    deadline = now() + ANSWER_SECONDS_MAX
    while now() < deadline:
        for endpoint in endpoints:
            connection = ZooKeeperConnection(lambda *_: None, lambda _: None)
            end = partial(connection.end, CONNECT_MS_MAX, *client_id, auth)
            with contextlib.suppress(ConnectionLossError):  # or its owner took it back
                try:
                    await connection.open(endpoint, CONNECT_MS_MAX / 1000 / len(endpoints), end)
                    return
                finally:
                    connection.abort()
        await asyncio.sleep(pauses.pause())
    raise ConnectionLossError(f"session {client_id[0]:#x} could not be ended: no ZooKeeper server answers")


def _client_id(token: str) -> tuple[int, bytes]:
    match = _TOKEN.fullmatch(token)
    if match is None or len(match[2]) % 2:
        raise BadRequestError("a session token looks like 'id:password'", field="token")
    return int(match[1]), bytes.fromhex(match[2])


def _size_of(operation: Operation) -> int:
    return len(getattr(operation, "value", None) or b"") + len(operation.path) + OVERHEAD_BYTES
