"""The MetadataStore that talks to an embedded server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.errors import BadRequestError
from metadata.embedded.limits import CONNECT_MS_MAX
from metadata.embedded.link import Link
from metadata.embedded.protocol import Op, decode_stat, encode_operation
from metadata.errors import NoNodeError
from metadata.parents import create_parents
from metadata.store import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    SessionListener,
    SessionState,
    Set,
    Stat,
    Watch,
    Watcher,
)
from metadata.watches import WatchKind


class EmbeddedStore:
    """One session with an embedded server; a MetadataStore.

    While SUSPENDED, a call waits up to ``limits.CALL_WAIT_MS_MAX`` for the connection to come back.
    """

    def __init__(self, link: Link) -> None:
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
    def session_id(self) -> int:
        """See MetadataStore."""
        return self._link.session_id

    @property
    def session_token(self) -> str:
        """See MetadataStore."""
        return f"{self._link.session_id}:{self._link.password}"

    @property
    def session_timeout_ms(self) -> int:
        """See MetadataStore."""
        return self._link.timeout_ms

    @property
    def state(self) -> SessionState:
        """See MetadataStore."""
        return self._link.state

    def add_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._link.add_listener(listener)

    def remove_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._link.remove_listener(listener)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """See MetadataStore."""
        operation = Create(path, value, ephemeral, sequence)
        try:
            (created,) = await self.multi([operation])
        except NoNodeError:
            if not parents:
                raise
            await create_parents(self, path)
            (created,) = await self.multi([operation])
        assert isinstance(created, str), "create answers with a path"
        return created

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """See MetadataStore."""
        value, items = await self._read(Op.GET, WatchKind.DATA, path, watcher)
        return value, decode_stat(items)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        """See MetadataStore."""
        (stat,) = await self.multi([Set(path, value, version)])
        assert isinstance(stat, Stat), "set answers with a stat"
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See MetadataStore."""
        await self.multi([Delete(path, version)])

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
