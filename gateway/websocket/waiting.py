"""A WebSocket producer that waits for exclusive access to a topic (``accessMode=WaitForExclusive``).

The upgrade is accepted immediately: access may take an hour, and only a connected peer can be seen to leave. Frames
that the peer sends meanwhile wait, a few here and the rest in the sockets (I15); the first receipt tells the peer that
it has access. If access is refused, the session ends with the error's close code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.websockets import WebSocket

from heliograph.gateway.websocket.upgrade import WebSocketSession

Event = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Event]]

EARLY_FRAMES_MAX = 8


class WaitingSession:
    """A session that waits until its producer is open, then serves the peer.

    Args:
        open_: opens the producer, however long that takes; cancelled when the peer leaves first.
        start: returns the session on the open producer, which receives its events from the given function.
    """

    def __init__(
        self,
        websocket: WebSocket,
        open_: Callable[[], Awaitable[Any]],
        start: Callable[[Any, Receive], WebSocketSession],
    ) -> None:
        self._websocket = websocket
        self._open = open_
        self._start = start
        self._events: asyncio.Queue[Event] = asyncio.Queue(EARLY_FRAMES_MAX)
        self._session: WebSocketSession | None = None

    async def run(self) -> None:
        """Wait for the producer, then serve the peer until it leaves."""
        reading = asyncio.ensure_future(self._read())
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait((reading, opening), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                self._session = self._start(opening.result(), self._events.get)
                await self._session.run()
        finally:
            for task in (reading, opening):
                task.cancel()
            await asyncio.gather(reading, opening, return_exceptions=True)

    async def close(self) -> None:
        """Close the producer if it was opened."""
        if self._session is not None:
            await self._session.close()

    async def _read(self) -> None:
        """Queue the peer's events until it leaves."""
        while True:
            event = await self._websocket.receive()
            await self._events.put(event)
            if event["type"] == "websocket.disconnect":
                return
