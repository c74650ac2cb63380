"""The sessions of an endpoint: opened, resumed, and ended by their clients, by timeout or by the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from heliograph.metadata.endpoint.limits import SESSIONS_MAX, STORE_TIMEOUT_FACTOR, EndpointLimits
from heliograph.metadata.endpoint.session.session import WireSession
from heliograph.metadata.endpoint.wire.requests import ConnectRequest
from heliograph.metadata.errors import ConnectionLossError, MetadataError
from heliograph.metadata.store import MetadataStore, SessionState

OpenStore = Callable[[int], Awaitable[MetadataStore]]  # a session timeout in milliseconds -> a new session

log = logging.getLogger(__name__)


class SessionTable:
    """The sessions of an endpoint by id."""

    def __init__(self, open_store: OpenStore, limits: EndpointLimits, now_ms: Callable[[], int]) -> None:
        self._open_store = open_store
        self._limits = limits
        self._now_ms = now_ms
        self._sessions: dict[int, WireSession] = {}
        self._opening = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.expired = 0  # since the start

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[WireSession]:
        return iter(list(self._sessions.values()))

    async def admit(self, asked: ConnectRequest) -> WireSession | None:
        """Return the session of a client that connects, a new one if it names none; None if the named one has ended.

        Raises:
            ConnectionLossError: the store cannot be reached, or there are too many sessions; the client may try again.
        """
        if asked.session_id == 0:
            return await self._begin(self._limits.negotiated(asked.timeout_ms))
        session = self._sessions.get(asked.session_id)
        if session is None or not session.accepts(asked.password):
            return None
        async with session.taking_over:
            while session.latest is not None:
                await session.latest.end()
        if session.session_id not in self._sessions:
            return None
        if not session.is_usable:
            raise ConnectionLossError(f"the store session of session {session.session_id:#x} is not connected")
        session.touch(self._now_ms())
        return session

    async def close(self, session: WireSession) -> None:
        """End a session at its client's request."""
        self._sessions.pop(session.session_id, None)
        await session.store.close()

    def expire(self) -> None:
        """End the sessions whose clients were silent for their timeout."""
        now_ms = self._now_ms()
        for session in self:
            if session.deadline_ms <= now_ms:
                log.info("session %#x expires after %d ms of silence", session.session_id, session.timeout_ms)
                self.expired += 1
                self._drop(session)

    def postpone_expiry(self, delay_ms: int) -> None:
        """Move every deadline, after a time in which the endpoint could not read from clients."""
        for session in self._sessions.values():
            session.deadline_ms += delay_ms

    async def stop(self) -> None:
        """End all sessions."""
        for session in self:
            self._drop(session)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _begin(self, timeout_ms: int) -> WireSession:
        if len(self._sessions) + self._opening >= SESSIONS_MAX:
            raise ConnectionLossError(f"the endpoint has {SESSIONS_MAX} sessions, which is its limit")
        self._opening += 1
        try:
            store = await self._open_store(timeout_ms * STORE_TIMEOUT_FACTOR)
        finally:
            self._opening -= 1
        session = WireSession(store, timeout_ms, self._now_ms())
        self._sessions[session.session_id] = session
        store.add_session_listener(partial(self._on_state, session))
        return session

    def _on_state(self, session: WireSession, state: SessionState) -> None:
        if state is SessionState.CONNECTED or session.session_id not in self._sessions:
            return
        # As a ZooKeeper server without a quorum does: the client learns that it is disconnected.
        if session.connection is not None:
            session.connection.abort()
        if state is SessionState.LOST:
            log.warning("the store ended session %#x", session.session_id)
            self._drop(session)

    def _drop(self, session: WireSession) -> None:
        self._sessions.pop(session.session_id, None)
        if session.connection is not None:
            session.connection.abort()
        session.watches.detach()
        task = asyncio.get_running_loop().create_task(self._close_store(session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_store(self, session: WireSession) -> None:
        try:
            await session.store.close()
        except MetadataError as error:
            log.warning("session %#x was not ended, it ends at its timeout: %s", session.session_id, error)
