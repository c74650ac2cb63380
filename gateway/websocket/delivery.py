"""The part that WebSocket consumers and readers share: messages out within a window, frames in."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial

from starlette.websockets import WebSocket

from heliograph.gateway.errors import reason_of
from heliograph.gateway.http.metrics import WEBSOCKET
from heliograph.gateway.ports import ConsumerPort, MessagePort, ReaderPort
from heliograph.gateway.services import Services
from heliograph.gateway.shapes.bodies import aside
from heliograph.gateway.shapes.json_forms import id_text
from heliograph.gateway.shapes.payload_forms import PayloadFormat, message_text
from heliograph.gateway.websocket.frames import RefusedFrame, command_error
from heliograph.gateway.websocket.windows import DeliveryWindow

RECEIVE_SECONDS = 60.0  # one wait for messages; another follows


class DeliverySession(ABC):
    """One session that delivers the messages of a consumer or reader.

    Args:
        source: the consumer or reader; the session closes it.
        window: how many messages may be sent before the peer answers (I15).
        form: of payloads in frames.
    """

    def __init__(
        self,
        websocket: WebSocket,
        services: Services,
        source: ConsumerPort | ReaderPort,
        window: DeliveryWindow,
        form: PayloadFormat = "base64",
    ) -> None:
        self._websocket = websocket
        self._metrics = services.metrics
        self._source = source
        self._window = window
        self._form = form
        self._room = asyncio.Event()

    async def close(self) -> None:
        """Close the consumer or reader; a consumer's unacknowledged messages are delivered again."""
        await self._source.close()

    @abstractmethod
    async def _on_frame(self, text: str | None) -> None:
        """Handle one frame of the peer. Raises RefusedFrame, which is answered; the session continues."""

    async def _read_frames(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                await self._on_frame(event.get("text"))
            except RefusedFrame as problem:
                self._metrics.add("bad_frames_total")
                await self._send(command_error(problem.code, reason_of(problem.error), problem.context))

    async def _wait_for_room(self) -> int:
        """Return how many messages may be sent now, at least 1."""
        while (room := self._window.room()) == 0:
            self._room.clear()
            await self._room.wait()
        return room

    async def _send_message(self, message: MessagePort) -> None:
        self._window.on_sent((message.message_id,))
        text = partial(message_text, message, id_text(message.message_id), self._form)
        await self._send(await aside(len(message.data), text))
        self._metrics.delivered(WEBSOCKET, 1, len(message.data))

    async def _send(self, text: str) -> None:
        await self._websocket.send({"type": "websocket.send", "text": text})
