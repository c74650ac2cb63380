"""Pulsar's WebSocket reader: reads a topic from a position, without a durable subscription."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from fastapi import APIRouter
from starlette.websockets import WebSocket

from gateway.errors import reason_of
from gateway.frames import FrameProblem, command_error, end_of_topic, is_end_of_topic_question
from gateway.json_forms import id_from_text, id_text, message_json
from gateway.metrics import WEBSOCKET
from gateway.ports import Reader
from gateway.query import Query
from gateway.services import Services, ServicesDep
from gateway.session import ReaderWindow
from gateway.topics import topic_name
from gateway.websocket_consumer import CRYPTO_FAILURE_ACTIONS, RECEIVE_SECONDS, receiver_queue
from gateway.websocket_upgrade import run_until_first, serve
from heliograph.errors import TopicTerminatedError
from heliograph.protocol.message_id import MessageId

router = APIRouter()


class ReaderSession:
    """The conversation with one WebSocket reader: messages out, confirmations in."""

    def __init__(self, websocket: WebSocket, services: Services, reader: Reader, window: ReaderWindow) -> None:
        self._websocket = websocket
        self._metrics = services.metrics
        self._reader = reader
        self._window = window
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Converse until the peer leaves."""
        await run_until_first(self._push(), self._read_frames())

    async def close(self) -> None:
        """Let the reader go."""
        await self._reader.close()

    async def _push(self) -> None:
        with suppress(TopicTerminatedError):
            await self._push_messages()
        await asyncio.Event().wait()  # nothing more will come; the peer may still ask whether that is so

    async def _push_messages(self) -> None:
        while True:
            while (room := self._window.room()) == 0:
                self._room.clear()
                await self._room.wait()
            for message in await self._reader.receive_many(room, RECEIVE_SECONDS):
                self._window.on_sent((message.message_id,))
                self._metrics.delivered(WEBSOCKET, 1, len(message.value))
                await self._send(json.dumps(message_json(message, id_text(message.message_id))))

    async def _read_frames(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                if is_end_of_topic_question(event.get("text")):
                    await self._send(end_of_topic(self._reader.has_reached_end))
                    continue
            except FrameProblem as problem:
                self._metrics.frame_errors.inc()
                await self._send(command_error(problem.code, reason_of(problem.error), problem.context))
                continue
            self._window.on_settled(None)
            self._room.set()

    async def _send(self, text: str) -> None:
        await self._websocket.send({"type": "websocket.send", "text": text})


def start_position(query: Query) -> MessageId | str:
    """Where a reader starts: ``earliest``, ``latest``, or behind the message with the given id.

    Raises:
        InvalidMessageIdError: ``messageId`` is none of these.
    """
    text = query.text("messageId") or "latest"
    # A plus sign in a query means a blank, and base64 ids hold plus signs that few clients escape.
    return text if text in ("earliest", "latest") else id_from_text(text.replace(" ", "+"))


@router.websocket("/ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}")
async def reader_endpoint(
    websocket: WebSocket, services: ServicesDep, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """A WebSocket reader."""

    async def open_session() -> ReaderSession:
        name = topic_name(domain, tenant, namespace, topic)
        query = Query(websocket.query_params)
        query.choice("cryptoFailureAction", CRYPTO_FAILURE_ACTIONS, "FAIL")  # nothing is decrypted here
        capacity = receiver_queue(query)
        reader = await services.client.reader(
            str(name),
            start=start_position(query),
            name=query.text("readerName"),
            receiver_queue=capacity,
            receiver_bytes_max=services.config.receiver_bytes_max,
        )
        return ReaderSession(websocket, services, reader, ReaderWindow(capacity))

    await serve(websocket, services, "reader", open_session)
