"""A WebSocket producer that waits for its turn on a topic (``accessMode=WaitForExclusive``).

The upgrade is answered at once: the turn may come in an hour, and only a peer that is connected can be seen to leave.
What it sends meanwhile waits with it, a few frames here and the rest in the sockets (I15); the first receipt tells it
that the topic is its own. Where it cannot be, the session ends with the error's close code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.websockets import WebSocket

from gateway.websocket_upgrade import Session

Event = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Event]]

EARLY_FRAMES_MAX = 8


class WaitingSession:
    """A conversation that begins once something is open.

    Args:
        open_: opens it, however long that takes; cancelled when the peer leaves first.
        converse: the session on what was opened, which takes its events from the given function.
    """

    def __init__(
        self, websocket: WebSocket, open_: Callable[[], Awaitable[Any]], converse: Callable[[Any, Receive], Session]
    ) -> None:
        self._websocket = websocket
        self._open = open_
        self._converse = converse
        self._events: asyncio.Queue[Event] = asyncio.Queue(EARLY_FRAMES_MAX)
        self._session: Session | None = None

    async def run(self) -> None:
        """Wait, then converse until the peer leaves."""
        reading = asyncio.ensure_future(self._read())
        opening = asyncio.ensure_future(self._open())
        try:
            await asyncio.wait((reading, opening), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                self._session = self._converse(opening.result(), self._events.get)
                await self._session.run()
        finally:
            for task in (reading, opening):
                task.cancel()
            await asyncio.gather(reading, opening, return_exceptions=True)

    async def close(self) -> None:
        """Let go of what was opened."""
        if self._session is not None:
            await self._session.close()

    async def _read(self) -> None:
        """Pass events on until the peer has left."""
        while True:
            event = await self._websocket.receive()
            await self._events.put(event)
            if event["type"] == "websocket.disconnect":
                return
