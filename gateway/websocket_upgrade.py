"""What every WebSocket endpoint does around its session: refuse with an HTTP status, hold a slot, close in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.errors import body_of, reason_of, row_of
from gateway.services import Services

CLOSE_REASON_BYTES_MAX = 123  # of a close frame, RFC 6455
CLOSE_SECONDS_MAX = 10.0  # how long a session may take to let its client handle go

_log = logging.getLogger(__name__)


class Session(Protocol):
    """One conversation after the upgrade."""

    async def run(self) -> None:
        """Converse until the peer leaves; an error ends the session with that error's close code."""

    async def close(self) -> None:
        """Let go of what the session holds in the cluster."""


async def serve(websocket: WebSocket, services: Services, kind: str, open_: Callable[[], Awaitable[Session]]) -> None:
    """Open a session, accept the upgrade, converse, clean up.

    Args:
        kind: for the counters: producer, consumer or reader.
        open_: connects to the cluster; what it raises refuses the upgrade.
    """
    try:
        with services.slots.taken(kind):
            session = await open_()
            try:
                await websocket.accept()
                await session.run()
            finally:
                await _close(session)
    except (WebSocketDisconnect, OSError):
        pass  # the peer is gone: nobody to tell
    except Exception as error:
        if row_of(error).http == 500:
            _log.exception("WebSocket %s session failed", kind)
        await refuse(websocket, error)


async def refuse(websocket: WebSocket, error: Exception) -> None:
    """End the session with an error: an HTTP status before the upgrade, a close code after it."""
    row = row_of(error)
    try:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.send_denial_response(JSONResponse(body_of(error), status_code=row.upgrade))
        elif websocket.application_state is WebSocketState.CONNECTED:
            await websocket.close(row.close, _close_reason(reason_of(error)))
    except (WebSocketDisconnect, OSError, RuntimeError):
        _log.debug("the peer left before it could be told: %s", error)


async def run_until_first(*parts: Awaitable[None]) -> None:
    """Run the loops of a session side by side; when one ends, end the others and raise what it raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _close(session: Session) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await session.close()
    except Exception as error:
        # The session is over either way; a broker that cannot be told frees its side when the connection ends.
        _log.warning("closing a WebSocket session: %s", reason_of(error))


def _close_reason(text: str) -> str:
    return text.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
