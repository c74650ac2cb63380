"""The MetadataStore that talks to an embedded server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.errors import BadRequestError
from metadata.embedded.link import Link
from metadata.embedded.protocol import Op, decode_stat, encode_operation
from metadata.session_limits import CONNECT_MS_MAX
from metadata.session_store import SessionStore
from metadata.store import Operation, Stat, Watch, Watcher
from metadata.watches import WatchKind


class EmbeddedStore(SessionStore):
    """One session with an embedded server; a MetadataStore.

    While SUSPENDED, a call waits up to ``session_limits.CALL_WAIT_SECONDS_MAX`` for the connection to come back.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link.clock)
        self._link = link

    @classmethod
    async def connect(
        cls, host: str, port: int, *, session_timeout_ms: int = 10_000, connect_timeout_ms: int = CONNECT_MS_MAX
    ) -> EmbeddedStore:
        """Begin a session.

        Args:
            session_timeout_ms: asked for; the server keeps it within its bounds.
            connect_timeout_ms: how long to try.

        Raises:
            ConnectionLossError: the server could not be reached in time; says why.
            BadRequestError: the server speaks another version of the protocol.
        """
        return cls(await Link.open(host, port, session_timeout_ms, connect_timeout_ms))

    @property
    def session_token(self) -> str:
        """See MetadataStore."""
        return f"{self.session_id}:{self._link.password}"

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """See MetadataStore."""
        value, items = await self._read(Op.GET, WatchKind.DATA, path, watcher)
        return value, decode_stat(items)

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """See MetadataStore."""
        items = await self._read(Op.EXISTS, WatchKind.DATA, path, watcher)
        return decode_stat(items) if items is not None else None

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """See MetadataStore."""
        names, _ = await self._read(Op.CHILDREN, WatchKind.CHILD, path, watcher)
        return list(names)

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """See MetadataStore."""
        results = await self._link.call(Op.APPLY, [encode_operation(operation) for operation in operations])
        return [decode_stat(result) if isinstance(result, list) else result for result in results]

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """See MetadataStore."""
        _, watch_id = await self._watched(Op.WATCH, WatchKind.RECURSIVE, path, watcher)
        return _EmbeddedWatch(self, watch_id)

    async def sync(self, path: str = "/") -> None:
        """See MetadataStore."""
        await self._link.call(Op.SYNC, path)

    async def end_session(self, token: str) -> None:
        """See MetadataStore."""
        number, _, password = token.partition(":")
        if not number.isdigit() or not password:
            raise BadRequestError("a session token looks like 'id:password'", field="token")
        await self._link.call(Op.END_SESSION, int(number), password)

    async def close(self) -> None:
        """See MetadataStore."""
        await self._link.close()

    async def _read(self, op: Op, kind: WatchKind, path: str, watcher: Watcher | None) -> Any:
        if watcher is None:
            return await self._link.call(op, path, 0)
        result, _ = await self._watched(op, kind, path, watcher)
        return result

    async def _watched(self, op: Op, kind: WatchKind, path: str, watcher: Watcher) -> tuple[Any, int]:
        """A call that leaves a watch if it succeeds: its result and the watch's number."""
        watchers = self._link.watchers
        watch_id = watchers.add(kind, path, watcher)
        try:
            result = await self._link.call(
                op, path, watch_id, on_result=lambda result: watchers.confirm(watch_id, _stat_in(op, result))
            )
        except BaseException:
            self._cancel(watch_id)
            raise
        return result, watch_id

    def _cancel(self, watch_id: int) -> None:
        if self._link.watchers.discard(watch_id):
            self._link.tell(Op.UNWATCH, watch_id)


class _EmbeddedWatch:
    def __init__(self, store: EmbeddedStore, watch_id: int) -> None:
        self._store = store
        self._watch_id = watch_id

    def cancel(self) -> None:
        """See Watch."""
        self._store._cancel(self._watch_id)


def _stat_in(op: Op, result: Any) -> Stat | None:
    """The stat that an answer to a read carries."""
    if op is Op.EXISTS:
        return decode_stat(result) if result is not None else None
    return decode_stat(result[1]) if op in (Op.GET, Op.CHILDREN) else None
