"""The life of a WebSocket session: refuse with an HTTP status or accept, hold a slot, close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError
from heliograph.gateway.errors import body_of, headers_of, reason_of, row_of
from heliograph.gateway.services import Services
from heliograph.gateway.websocket.query import UrlQuery

CLOSE_REASON_BYTES_MAX = 123  # of a close frame, RFC 6455
CLOSE_SECONDS_MAX = 10.0  # time limit for closing a session's producer, consumer or reader

Q = TypeVar("Q", bound=UrlQuery)

log = logging.getLogger(__name__)


class WebSocketSession(Protocol):
    """One session after the upgrade."""

    async def run(self) -> None:
        """Serve the peer until it leaves; an error ends the session with that error's close code."""

    async def close(self) -> None:
        """Close the session's producer, consumer or reader."""


async def serve(
    websocket: WebSocket, services: Services, kind: str, open_: Callable[[], Awaitable[WebSocketSession]]
) -> None:
    """Open a session, accept the upgrade, run the session, close it.

    Args:
        kind: producer, consumer or reader, for the counters.
        open_: opens the session; an error that it raises refuses the upgrade.
    """
    try:
        with services.session(kind):
            session = await open_()
            try:
                await websocket.accept()
                await _run_while_valid(session, services)
            finally:
                await _close(session)
    except (WebSocketDisconnect, OSError):
        pass  # the peer has left and cannot be answered
    except Exception as error:
        if row_of(error).http == 500:
            log.exception("WebSocket %s session failed", kind)
        await refuse(websocket, error)


async def query_of(kind: type[Q], websocket: WebSocket) -> Q:
    """Return the checked parameters of a session's URL, as ``UrlQuery.of`` does."""
    if "valueSchema" in websocket.query_params:
        return await asyncio.to_thread(kind.of, websocket.query_params)
    return kind.of(websocket.query_params)


async def refuse(websocket: WebSocket, error: Exception) -> None:
    """End the session with an error: an HTTP status before the upgrade, a close code after it."""
    row = row_of(error)
    try:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(
                JSONResponse(body_of(error), status_code=row.upgrade, headers=headers_of(error))
            )
        elif websocket.application_state is WebSocketState.CONNECTED:
            await websocket.close(row.close, _close_reason(reason_of(error)))
    except (WebSocketDisconnect, OSError, RuntimeError):
        log.debug("the peer left before the error could be sent: %s", error)


async def _run_while_valid(session: WebSocketSession, services: Services) -> None:
    """Run a session until the peer leaves.

    Raises:
        AuthenticationError: the credentials that the upgrade presented have ended, or were revoked; the peer may
            connect with new ones.
    """
    principal = services.caller.principal
    expires_ms = principal.expires_ms
    seconds = None if expires_ms is None else (expires_ms - wall_ms()) / 1000
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            if principal.token_ids:
                await run_until_first(session.run(), services.authenticator.until_revoked(principal))
            else:
                await session.run()
    except TimeoutError:
        if not limit.expired():
            raise
        raise AuthenticationError("the credentials have ended: connect again with new ones") from None


async def run_until_first(*parts: Awaitable[None]) -> None:
    """Run the loops of a session concurrently; when one ends, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _close(session: WebSocketSession) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await session.close()
    except Exception as error:
        # The session has ended either way; a broker that cannot be reached cleans up when the connection ends.
        log.warning("a WebSocket session was not closed cleanly: %s", reason_of(error))


def _close_reason(text: str) -> str:
    return text.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
