"""Pulsar's WebSocket producer: one frame in for each message, one receipt out, in order.

Messages are passed to the client without waiting for receipts, so that many share an entry; receipts are sent in the
order of the frames. A frame that is refused is answered in its turn, and the session continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.websockets import WebSocket

from heliograph.base.errors import HeliographError
from heliograph.gateway.errors import reason_of
from heliograph.gateway.http.metrics import WEBSOCKET
from heliograph.gateway.ports import ProducerPort
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.json_forms import due_ms, id_text
from heliograph.gateway.shapes.payload_forms import PayloadFormat
from heliograph.gateway.shapes.topics import topic_name
from heliograph.gateway.shapes.value_schema import ValueSchema
from heliograph.gateway.websocket.frames import FAILED, RefusedFrame, receipt, send_error, send_frame
from heliograph.gateway.websocket.query import ProducerQuery
from heliograph.gateway.websocket.upgrade import WebSocketSession, query_of, run_until_first, serve
from heliograph.gateway.websocket.waiting import Receive, WaitingSession
from heliograph.protocol.message_id import MessageId

router = APIRouter()


@dataclass(slots=True)
class _PendingAnswer:
    """The answer to one frame: of a send in progress, or already known."""

    size: int
    context: str | None
    sending: asyncio.Future[MessageId] | None
    answer: str = ""


class WebSocketProducerSession:
    """One session with a WebSocket producer.

    At most ``window_messages`` frames and ``window_bytes`` payload bytes wait for their receipts; beyond that, no
    further frame is read (I15).
    """

    def __init__(
        self,
        websocket: WebSocket,
        services: Services,
        producer: ProducerPort,
        window_messages: int,
        receive: Receive | None = None,
        form: PayloadFormat = "base64",
        schema: ValueSchema | None = None,
    ) -> None:
        self._websocket = websocket
        self._receive = receive or websocket.receive
        self._producer = producer
        self._metrics = services.metrics
        self._payload_bytes_max = services.config.max_message_bytes
        self._window_messages = window_messages
        self._form = form
        self._schema = schema
        self._window_bytes = services.config.producer_window_bytes
        self._pending: deque[_PendingAnswer] = deque()
        self._pending_bytes = 0
        self._answerable = asyncio.Event()  # the first answer may be ready
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Serve the peer until it leaves."""
        await run_until_first(self._read_frames(), self._write_answers())

    async def close(self) -> None:
        """Wait until the accepted messages are stored or have failed, then close the producer."""
        await self._producer.close()

    async def _read_frames(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            await self._on_frame(event.get("text"))
            while len(self._pending) >= self._window_messages or self._pending_bytes >= self._window_bytes:
                self._room.clear()
                await self._room.wait()

    async def _on_frame(self, text: str | None) -> None:
        """Pass the message of one frame to the client, or prepare the error that answers the frame."""
        try:
            if self._schema is None:
                frame = send_frame(text, self._payload_bytes_max, self._form)
            else:
                frame = await asyncio.to_thread(send_frame, text, self._payload_bytes_max, self._form, self._schema)
            sending = await self._producer.enqueue(
                frame.payload,
                key=frame.key,
                properties=frame.properties,
                event_time_ms=frame.eventTime,
                deliver_at=due_ms(frame.deliverAt, frame.deliverAfterMs),
            )
        except RefusedFrame as problem:
            self._metrics.add("bad_frames_total")
            answer = send_error(problem.code, reason_of(problem.error), problem.context)
            self._add(_PendingAnswer(0, problem.context, None, answer))
        except HeliographError as error:
            self._metrics.failed(WEBSOCKET)
            self._add(_PendingAnswer(0, frame.context, None, send_error(FAILED, reason_of(error), frame.context)))
        else:
            self._add(_PendingAnswer(len(frame.payload or b""), frame.context, sending))
            sending.add_done_callback(self._on_sent)

    def _add(self, pending: _PendingAnswer) -> None:
        self._pending.append(pending)
        self._pending_bytes += pending.size
        if pending.sending is None:
            self._answerable.set()

    def _on_sent(self, sending: asyncio.Future[MessageId]) -> None:
        if not sending.cancelled():
            sending.exception()  # retrieved: the session may have ended
        if self._pending and self._pending[0].sending is sending:
            self._answerable.set()

    async def _write_answers(self) -> None:
        while True:
            await self._answerable.wait()
            self._answerable.clear()
            while self._pending and ((sending := self._pending[0].sending) is None or sending.done()):
                pending = self._pending.popleft()
                self._pending_bytes -= pending.size
                self._room.set()
                await self._websocket.send({"type": "websocket.send", "text": self._answer(pending)})

    def _answer(self, pending: _PendingAnswer) -> str:
        if pending.sending is None:
            return pending.answer
        error = pending.sending.exception()
        if error is None:
            self._metrics.produced(WEBSOCKET, 1, pending.size)
            return receipt(id_text(pending.sending.result()), pending.context)
        if not isinstance(error, HeliographError):
            raise error  # a fault of the gateway: the session ends with 1011, and the log has the reason
        self._metrics.failed(WEBSOCKET)
        return send_error(FAILED, reason_of(error), pending.context)


@router.websocket("/ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}")
async def producer_endpoint(
    websocket: WebSocket, services: ServicesDep, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    async def open_session() -> WebSocketSession:
        name = topic_name(domain, tenant, namespace, topic)
        query = await query_of(ProducerQuery, websocket)
        window = query.maxPendingMessages or services.config.producer_window_messages

        async def open_producer() -> ProducerPort:
            return await services.client.producer(str(name), **query.options())

        def start(producer: ProducerPort, receive: Receive | None = None) -> WebSocketProducerSession:
            form, schema = query.payloadFormat, query.valueSchema
            return WebSocketProducerSession(websocket, services, producer, window, receive, form, schema)

        if query.access_mode == "wait_for_exclusive":
            return WaitingSession(websocket, open_producer, start)
        return start(await open_producer())

    await serve(websocket, services, "producer", open_session)
