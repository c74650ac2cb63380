"""The sessions of an endpoint: opened, resumed, and ended by their clients, by timeout or by the store.

A session lives in the store: its id, password and timeout are those of a session of the store. So a client can move to
another endpoint, which takes the store's session over; the first endpoint finds it LOST.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from heliograph.base.errors import BadRequestError
from heliograph.metadata.endpoint.limits import SESSIONS_MAX, STORE_TIMEOUT_FACTOR, EndpointLimits
from heliograph.metadata.endpoint.session.session import WireSession
from heliograph.metadata.endpoint.wire.requests import ConnectRequest
from heliograph.metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError
from heliograph.metadata.store import MetadataStore, SessionState


class OpenStore(Protocol):
    """The way to the store."""

    def __call__(self, timeout_ms: int, token: str | None) -> Awaitable[MetadataStore]:
        """Open a session with a timeout, or take one over, depending on the token as in ``connect_store``."""


log = logging.getLogger(__name__)


class SessionTable:
    """The sessions of an endpoint by id."""

    def __init__(self, open_store: OpenStore, limits: EndpointLimits, now_ms: Callable[[], int]) -> None:
        self._open_store = open_store
        self._limits = limits
        self._now_ms = now_ms
        self._sessions: dict[int, WireSession] = {}
        self._opening = 0
        self._moving: set[int] = set()  # the sessions that are being taken over
        self._closing: set[asyncio.Task[None]] = set()
        self.expired = self.moved = 0  # since the start

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[WireSession]:
        return iter(list(self._sessions.values()))

    async def admit(self, asked: ConnectRequest) -> WireSession | None:
        """Return the session of a connecting client: the named one, or a new one if it names none; None if the named
        one has ended.

        Raises:
            ConnectionLossError: the store cannot be reached, or there are too many sessions; the client may retry.
        """
        if asked.session_id == 0:
            return await self._begin(self._limits.negotiated(asked.timeout_ms))
        session = self._sessions.get(asked.session_id)
        if session is None:
            return await self._take_over(asked)
        if not session.accepts(asked.password):
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
                self._drop(session, self._expire_at_store(session))

    def postpone_expiry(self, delay_ms: int) -> None:
        """Postpone every deadline, after a time in which the endpoint could not read from clients."""
        for session in self._sessions.values():
            session.deadline_ms += delay_ms

    async def stop(self, *, ends_sessions: bool) -> None:
        """End all sessions, or leave them to other endpoints until their timeout."""
        for session in self:
            self._drop(session, self._close_store(session) if ends_sessions else self._leave(session))
        if self._closing:
            await asyncio.wait(self._closing)

    async def _begin(self, timeout_ms: int) -> WireSession:
        return self._add(await self._open(timeout_ms, ""), timeout_ms)

    async def _take_over(self, asked: ConnectRequest) -> WireSession | None:
        """Continue a session that another endpoint served, or this one before its restart."""
        session_id, timeout_ms = asked.session_id, self._limits.negotiated(asked.timeout_ms)
        if session_id in self._moving:
            raise ConnectionLossError(f"session {session_id:#x} is being taken over by another connection")
        self._moving.add(session_id)
        try:
            store = await self._open(timeout_ms, f"{session_id}:{asked.password.hex()}")
            await store.sync()  # the client must not see an older state than at the other endpoint
        except (SessionExpiredError, BadRequestError) as error:
            log.info("session %#x is not continued: %s", session_id, error)
            return None
        finally:
            self._moving.discard(session_id)
        log.info("session %#x is continued here", session_id)
        self.moved += 1
        session = self._add(store, timeout_ms)
        session.zxid = max(0, asked.last_zxid)
        session.forget_ephemerals()
        return session

    async def _open(self, timeout_ms: int, token: str) -> MetadataStore:
        if len(self._sessions) + self._opening >= SESSIONS_MAX:
            raise ConnectionLossError(f"the endpoint has {SESSIONS_MAX} sessions, which is its limit")
        self._opening += 1
        try:
            return await self._open_store(timeout_ms * STORE_TIMEOUT_FACTOR, token)
        finally:
            self._opening -= 1

    def _add(self, store: MetadataStore, timeout_ms: int) -> WireSession:
        # A client is never promised more than the store keeps: its timeout is the shorter one.
        granted_ms = max(1, store.session_timeout_ms // STORE_TIMEOUT_FACTOR)
        session = WireSession(store, min(timeout_ms, granted_ms), self._now_ms())
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
            log.warning("session %#x has ended, or continues at another endpoint", session.session_id)
            self._drop(session, self._close_store(session))

    def _drop(self, session: WireSession, ending: Coroutine[Any, Any, None]) -> None:
        self._sessions.pop(session.session_id, None)
        if session.connection is not None:
            session.connection.abort()
        session.watches.detach()
        task = asyncio.get_running_loop().create_task(ending)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _expire_at_store(self, session: WireSession) -> None:
        """End a session whose client was silent here, unless it moved to another endpoint meanwhile."""
        try:
            await session.store.sync()
        except MetadataError:
            await self._leave(session)
        else:
            await self._close_store(session)

    async def _leave(self, session: WireSession) -> None:
        try:
            await session.store.detach()
        except MetadataError as error:
            log.warning("session %#x was not left in good order: %s", session.session_id, error)

    async def _close_store(self, session: WireSession) -> None:
        try:
            await session.store.close()
        except MetadataError as error:
            log.warning("session %#x was not ended, it ends at its timeout: %s", session.session_id, error)
