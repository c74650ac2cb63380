"""The MetadataStore on an embedded server."""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Sequence
from typing import Any

from typing_extensions import override

from heliograph.base.tls.contexts import ClientTls
from heliograph.metadata.backends.embedded.protocol import (
    VALUE,
    EmbeddedOp,
    check_arguments,
    decode_stat,
    encode_operation,
)
from heliograph.metadata.backends.embedded.session import EmbeddedSession
from heliograph.metadata.session.limits import CONNECT_MS_MAX
from heliograph.metadata.session.standing_watches import StandingWatch, WatchHandle
from heliograph.metadata.session.store import SessionStore, parse_token
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Operation, Stat, Watch, Watcher


class EmbeddedStore(SessionStore):
    """One session with an embedded server; a MetadataStore.

    While SUSPENDED, a call waits up to CALL_WAIT_SECONDS_MAX for the connection to come back.
    """

    def __init__(self, session: EmbeddedSession) -> None:
        super().__init__(session.clock)
        self._session = session

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        session_timeout_ms: int = 10_000,
        connect_timeout_ms: int = CONNECT_MS_MAX,
        token: str | None = None,
        tls: ClientTls | None = None,
        secret: str | None = None,
    ) -> EmbeddedStore:
        """Begin a session, or take one over.

        Args:
            session_timeout_ms: the requested timeout; the server keeps it within its bounds.
            connect_timeout_ms: how long to try to connect.
            token: of the session to take over, as for ``connect_store``.
            tls: for the connection; None: it is plain.
            secret: the cluster's secrets, one per line. If given, a server that knows none of them gets no requests.

        Raises:
            ConnectionLossError: the server could not be reached in time; says why.
            AuthenticationError: the server does not know the secret, or requires one that this client lacks.
            BadRequestError: the server speaks another version of the protocol, or the token is malformed.
            SessionExpiredError: the session to be taken over has ended, or its password is wrong.
        """
        known = parse_token(token) if token else None
        return cls(await EmbeddedSession.open(host, port, session_timeout_ms, connect_timeout_ms, known, tls, secret))

    @property
    @override
    def session_token(self) -> str:
        return f"{self.session_id}:{self._session.password}"

    @override
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        result = await self._read(EmbeddedOp.GET, WatchKind.DATA, path, watcher)
        check_arguments(result, (VALUE, list))
        value, items = result
        return value, decode_stat(items)

    @override
    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        items = await self._read(EmbeddedOp.EXISTS, WatchKind.DATA, path, watcher)
        return decode_stat(items) if items is not None else None

    @override
    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        result = await self._read(EmbeddedOp.CHILDREN, WatchKind.CHILD, path, watcher)
        check_arguments(result, (list, list))
        names: list[str] = result[0]
        return names

    @override
    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        if not self._session.has_pages:
            names = await self.children(path)
            at = bisect.bisect_left(names, start)
            return names[at : at + limit]
        result = await self._session.call(EmbeddedOp.CHILDREN_FROM, path, start, limit)
        check_arguments([result], (list,))
        page: list[str] = result
        return page

    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        results = await self._session.call(EmbeddedOp.APPLY, [encode_operation(operation) for operation in operations])
        check_arguments([results], (list,))
        return [decode_stat(result) if isinstance(result, list) else result for result in results]

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        watch = self._session.watches.add(StandingWatch(WatchKind.RECURSIVE, path, watcher))
        await self._watched(EmbeddedOp.WATCH, watch)
        return WatchHandle(lambda: self._cancel(watch))

    @override
    async def sync(self, path: str = "/") -> None:
        await self._session.call(EmbeddedOp.SYNC, path)

    @override
    async def reapable(self, count_max: int) -> list[str]:
        return list(await self._session.call(EmbeddedOp.REAPABLE, count_max))

    @override
    async def end_session(self, token: str) -> None:
        await self._session.call(EmbeddedOp.END_SESSION, *parse_token(token))

    @override
    async def close(self) -> None:
        await self._session.close()

    @override
    async def detach(self) -> None:
        await self._session.detach()

    def _read(self, op: EmbeddedOp, kind: WatchKind, path: str, watcher: Watcher | None) -> Awaitable[Any]:
        if watcher is None:
            return self._session.call(op, path, 0)
        return self._watched(op, self._session.watches.add(StandingWatch(kind, path, watcher)))

    async def _watched(self, op: EmbeddedOp, watch: StandingWatch) -> Any:
        """Make a call that leaves a watch if it succeeds. Return its result."""
        try:
            return await self._session.call(
                op, watch.path, watch.number, on_result=lambda result: watch.arm(_stat_in(op, result))
            )
        except BaseException:
            self._cancel(watch)
            raise

    def _cancel(self, watch: StandingWatch) -> None:
        if self._session.watches.remove(watch):
            self._session.tell(EmbeddedOp.UNWATCH, watch.number)


def _stat_in(op: EmbeddedOp, result: Any) -> Stat | None:
    """Return the stat that the answer to a read carries, if any."""
    if op is EmbeddedOp.EXISTS:
        return decode_stat(result) if result is not None else None
    if op not in (EmbeddedOp.GET, EmbeddedOp.CHILDREN):
        return None
    check_arguments(result, ((*VALUE, list), list))
    return decode_stat(result[1])
