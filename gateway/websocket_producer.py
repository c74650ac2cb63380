"""Pulsar's WebSocket producer: one frame in for each message, one receipt out, in order.

Frames are handed to the client without waiting, so that many share an entry; receipts go out in the order of the
frames. A frame that cannot be honoured is answered in its turn, and the session goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket

from gateway.errors import reason_of
from gateway.frames import FAILED, FrameProblem, receipt, send_error, send_frame
from gateway.json_forms import id_text
from gateway.metrics import WEBSOCKET
from gateway.ports import Producer
from gateway.query import Query
from gateway.services import Services, ServicesDep
from gateway.topics import topic_name
from gateway.websocket_turn import Receive, WaitingSession
from gateway.websocket_upgrade import Session, run_until_first, serve
from heliograph.errors import HeliographError
from heliograph.protocol.message_id import MessageId
from heliograph.types import AccessMode

ROUTING_MODES = ("SinglePartition", "RoundRobinPartition", "CustomPartition")
COMPRESSION_TYPES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
HASHING_SCHEMES = {"JavaStringHash": "java", "Murmur3_32Hash": "murmur3"}
ACCESS_MODES: dict[str, AccessMode] = {
    "Shared": "shared",
    "Exclusive": "exclusive",
    "WaitForExclusive": "wait_for_exclusive",
    "ExclusiveWithFencing": "exclusive_with_fencing",
}
BATCH_MESSAGES_MAX = 10_000
MILLISECONDS_MAX = 24 * 3600 * 1000
PENDING_MESSAGES_MAX = 10_000  # bound on the maxPendingMessages that a peer may ask for

router = APIRouter()


@dataclass(slots=True)
class _Turn:
    """One frame's place in the order of answers: a send under way, or an answer that is ready."""

    size: int
    context: str | None
    sending: asyncio.Future[MessageId] | None
    answer: str = ""


class ProducerSession:
    """The conversation with one WebSocket producer.

    At most ``window_messages`` frames and ``window_bytes`` payload bytes wait for their receipt; beyond that, no
    further frame is read (I15).
    """

    def __init__(
        self,
        websocket: WebSocket,
        services: Services,
        producer: Producer,
        window_messages: int,
        receive: Receive | None = None,
    ) -> None:
        self._websocket = websocket
        self._receive = receive or websocket.receive
        self._producer = producer
        self._metrics = services.metrics
        self._payload_bytes_max = services.config.max_message_bytes
        self._window_messages = window_messages
        self._window_bytes = services.config.producer_window_bytes
        self._turns: deque[_Turn] = deque()
        self._turns_bytes = 0
        self._answerable = asyncio.Event()  # the first turn may be ready
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Converse until the peer leaves."""
        await run_until_first(self._read_frames(), self._write_answers())

    async def close(self) -> None:
        """Wait until what was accepted is stored, or has failed, then let the producer go."""
        await self._producer.close()

    async def _read_frames(self) -> None:
        while True:
            event = await self._receive()
            if event["type"] == "websocket.disconnect":
                return
            await self._on_frame(event.get("text"))
            while len(self._turns) >= self._window_messages or self._turns_bytes >= self._window_bytes:
                self._room.clear()
                await self._room.wait()

    async def _on_frame(self, text: str | None) -> None:
        """Take one frame: hand its message to the client, or prepare the error that answers it."""
        try:
            frame = send_frame(text, self._payload_bytes_max)
            sending = await self._producer.enqueue(
                frame.payload,
                key=frame.key,
                properties=frame.properties,
                event_time_ms=frame.event_time_ms,
                deliver_at=frame.deliver_at,
            )
        except FrameProblem as problem:
            self._metrics.frame_errors.inc()
            answer = send_error(problem.code, reason_of(problem.error), problem.context)
            self._add(_Turn(0, problem.context, None, answer))
        except HeliographError as error:
            self._metrics.failed(WEBSOCKET)
            self._add(_Turn(0, frame.context, None, send_error(FAILED, reason_of(error), frame.context)))
        else:
            self._add(_Turn(len(frame.payload), frame.context, sending))
            sending.add_done_callback(self._on_sent)

    def _add(self, turn: _Turn) -> None:
        self._turns.append(turn)
        self._turns_bytes += turn.size
        if turn.sending is None:
            self._answerable.set()

    def _on_sent(self, sending: asyncio.Future[MessageId]) -> None:
        if not sending.cancelled():
            sending.exception()  # seen: the session may be over, and nobody left to be told
        if self._turns and self._turns[0].sending is sending:
            self._answerable.set()

    async def _write_answers(self) -> None:
        while True:
            await self._answerable.wait()
            self._answerable.clear()
            while self._turns and ((sending := self._turns[0].sending) is None or sending.done()):
                turn = self._turns.popleft()
                self._turns_bytes -= turn.size
                self._room.set()
                await self._websocket.send({"type": "websocket.send", "text": self._answer(turn)})

    def _answer(self, turn: _Turn) -> str:
        if turn.sending is None:
            return turn.answer
        error = turn.sending.exception()
        if error is None:
            self._metrics.produced(WEBSOCKET, 1, turn.size)
            return receipt(id_text(turn.sending.result()), turn.context)
        if not isinstance(error, HeliographError):
            raise error  # not the world's doing: the session ends with 1011, and the log says why
        self._metrics.failed(WEBSOCKET)
        return send_error(FAILED, reason_of(error), turn.context)


def producer_options(query: Query) -> dict[str, Any]:
    """The client's options for the parameters of a producer's URL.

    ``compressionType`` is checked and has no effect: a consumer gets the same bytes with or without it. So has
    ``messageRoutingMode``: messages with a key go to the key's partition, others take turns. ``accessMode`` is ours:
    Pulsar's WebSocket producers are always shared.

    Raises:
        BadRequestError, UnsupportedError: naming the parameter.
    """
    query.refuse("encryptionKeys", "encrypt on the client and send the bytes as payload")
    query.choice("messageRoutingMode", ROUTING_MODES, "SinglePartition")
    query.choice("compressionType", COMPRESSION_TYPES, "NONE")
    options: dict[str, Any] = {
        "hashing": HASHING_SCHEMES[query.choice("hashingScheme", tuple(HASHING_SCHEMES), "JavaStringHash")],
        "send_timeout_ms": query.integer("sendTimeoutMillis", 30_000, high=MILLISECONDS_MAX),
        "access_mode": ACCESS_MODES[query.choice("accessMode", tuple(ACCESS_MODES), "Shared")],
    }
    if name := query.text("producerName"):
        options["name"] = name
    batch_messages = query.integer("batchingMaxMessages", 1000, low=1, high=BATCH_MESSAGES_MAX)
    if not query.boolean("batchingEnabled", True):
        batch_messages = 1
    options["batch_messages"] = batch_messages
    options["linger_ms"] = query.integer("batchingMaxPublishDelay", 1, high=60_000) if batch_messages > 1 else 0
    if query.text("initialSequenceId") is not None:
        options["initial_sequence_id"] = query.integer("initialSequenceId", -1, low=-1)
    return options


@router.websocket("/ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}")
async def producer_endpoint(
    websocket: WebSocket, services: ServicesDep, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """A WebSocket producer."""

    async def open_session() -> Session:
        name = topic_name(domain, tenant, namespace, topic)
        query = Query(websocket.query_params)
        options = producer_options(query)
        window = query.integer(
            "maxPendingMessages", services.config.producer_window_messages, low=1, high=PENDING_MESSAGES_MAX
        )

        async def open_producer() -> Producer:
            return await services.client.producer(str(name), **options)

        def converse(producer: Producer, receive: Receive | None = None) -> ProducerSession:
            return ProducerSession(websocket, services, producer, window, receive)

        if options["access_mode"] == "wait_for_exclusive":
            return WaitingSession(websocket, open_producer, converse)
        return converse(await open_producer())

    await serve(websocket, services, "producer", open_session)
