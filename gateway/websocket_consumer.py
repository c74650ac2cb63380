"""Pulsar's WebSocket consumer, for one topic or several; pushed to, or pulling by permits.

Flow control is ``gateway/session.py``; the frames are ``gateway/frames.py``. Beyond Pulsar: cumulative
acknowledgements, seek, and an answer to any command that carries a context. No bad frame ends a session.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket

from gateway.config import GatewayConfig
from gateway.errors import reason_of
from gateway.frames import (
    FAILED,
    Command,
    CommandKind,
    FrameProblem,
    command,
    command_done,
    command_error,
    end_of_topic,
)
from gateway.json_forms import id_text, message_json
from gateway.metrics import WEBSOCKET
from gateway.ports import Consumer, Message, without_payload
from gateway.query import Query
from gateway.services import Services, ServicesDep
from gateway.session import RECEIVER_QUEUE_MAX, PermitWindow, PushWindow, Window
from gateway.topic_patterns import topics_of
from gateway.topics import subscription_name, topic_name
from gateway.websocket_upgrade import run_until_first, serve
from heliograph.errors import AlreadyClosedError, HeliographError, TopicTerminatedError
from heliograph.protocol.message_id import MessageId

COMMANDS_MAX = 10_000  # frames read and not yet carried out
DELIVERED_MAX = 10_000  # messages remembered without their payload, for their acknowledgement
RECEIVE_SECONDS = 60.0  # one wait for messages; a new one follows
CRYPTO_FAILURE_ACTIONS = ("FAIL", "DISCARD", "CONSUME")
NACK_DELAY_MS = 60_000  # Pulsar's own default
NACK_DELAY_MS_MAX = 24 * 3600 * 1000
PRIORITY_LEVEL_MAX = 1000
TYPES = {"Exclusive": "exclusive", "Shared": "shared", "Failover": "failover", "Key_Shared": "key_shared"}
POSITIONS = {"Latest": "latest", "Earliest": "earliest"}

router = APIRouter()


class ConsumerSession:
    """The conversation with one WebSocket consumer: three loops that share a window."""

    def __init__(self, websocket: WebSocket, services: Services, consumer: Consumer, window: Window) -> None:
        self._websocket = websocket
        self._metrics = services.metrics
        self._consumer = consumer
        self._window = window
        self._room = asyncio.Event()
        self._commands: deque[Command] = deque()
        self._commands_arrived = asyncio.Event()
        self._commands_room = asyncio.Event()
        self._unsent: deque[Message] = deque()
        self._pushing: asyncio.Task[None] | None = None
        self._is_unsubscribing = False
        self._push_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._delivered: OrderedDict[MessageId, Message] = OrderedDict()  # without payloads, newest last

    async def run(self) -> None:
        """Converse until the peer leaves."""
        self._start_pushing()
        try:
            await run_until_first(self._read_frames(), self._carry_out(), self._watch_push())
        finally:
            await self._stop_pushing()
            if self._push_failed.done() and not self._push_failed.cancelled():
                self._push_failed.exception()  # seen, even where the peer left at the same moment

    async def close(self) -> None:
        """Let the consumer go; what was not acknowledged is delivered again."""
        await self._consumer.close()

    # -- pushing messages

    def _start_pushing(self) -> None:
        self._pushing = asyncio.ensure_future(self._push())

    async def _stop_pushing(self) -> None:
        if self._pushing is not None:
            self._pushing.cancel()
            await asyncio.gather(self._pushing, return_exceptions=True)
            self._pushing = None

    async def _watch_push(self) -> None:
        await self._push_failed

    async def _push(self) -> None:
        try:
            while True:
                while (room := self._window.room()) == 0:
                    self._room.clear()
                    await self._room.wait()
                if not self._unsent:
                    room = min(room, RECEIVER_QUEUE_MAX)
                    self._unsent.extend(await self._consumer.receive_many(room, RECEIVE_SECONDS))
                while self._unsent and self._window.room():
                    await self._send_message(self._unsent.popleft())
        except TopicTerminatedError:
            return  # the session goes on: its peer may ask for the end, or seek
        except AlreadyClosedError as error:
            if not self._is_unsubscribing and not self._push_failed.done():
                self._push_failed.set_exception(error)
        except Exception as error:  # carried to run(), which ends the session with it
            if not self._push_failed.done():
                self._push_failed.set_exception(error)

    async def _send_message(self, message: Message) -> None:
        id_ = message.message_id
        self._delivered[id_] = without_payload(message)
        self._delivered.move_to_end(id_)
        if len(self._delivered) > DELIVERED_MAX:
            self._delivered.popitem(last=False)
        self._window.on_sent((id_,))
        try:
            await self._send(json.dumps(message_json(message, id_text(id_))))
        except asyncio.CancelledError:  # for a seek, while the peer was slow; it may fail, and this is not sent yet
            self._unsent.appendleft(message)
            self._window.on_permits(1)
            raise
        self._metrics.delivered(WEBSOCKET, 1, len(message.value))

    async def _send(self, text: str) -> None:
        await self._websocket.send({"type": "websocket.send", "text": text})

    # -- reading commands

    async def _read_frames(self) -> None:
        while True:
            event = await self._websocket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                self._on_command(command(event.get("text")))
            except FrameProblem as problem:
                self._metrics.frame_errors.inc()
                await self._send(command_error(problem.code, reason_of(problem.error), problem.context))
            while len(self._commands) >= COMMANDS_MAX:
                self._commands_room.clear()
                await self._commands_room.wait()

    def _on_command(self, item: Command) -> None:
        """Take one command: count it at once, so that messages flow on, and have it carried out in its turn."""
        match item.kind:
            case CommandKind.ACK | CommandKind.NACK:
                self._window.on_settled(item.message_id)
            case CommandKind.CUMULATIVE_ACK:
                self._settle_up_to(item.message_id)
            case CommandKind.PERMIT:
                self._window.on_permits(item.permits)
        self._room.set()
        self._commands.append(item)
        self._commands_arrived.set()

    def _settle_up_to(self, last: MessageId | None) -> None:
        assert last is not None, "a cumulative acknowledgement names its message"
        if isinstance(self._window, PushWindow):
            ids = [id_ for id_ in self._window.unsettled if isinstance(id_, MessageId)]
            self._window.on_settled_up_to(id_ for id_ in ids if id_ <= last and id_.partition == last.partition)

    # -- carrying commands out, in order

    async def _carry_out(self) -> None:
        while True:
            await self._commands_arrived.wait()
            self._commands_arrived.clear()
            while self._commands:
                await self._carry_out_next()
                self._commands_room.set()

    async def _carry_out_next(self) -> None:
        batch = self._next_batch()
        try:
            await self._apply(batch)
        except HeliographError as error:
            for item in batch:
                await self._send(command_error(FAILED, reason_of(error), item.context))
            return
        for item in batch:  # I11: an answer says that the acknowledgement is durable
            if item.context is not None:
                await self._send(command_done(item.context))

    def _next_batch(self) -> list[Command]:
        """The next command; for an acknowledgement, all that follow it directly: they share one durable write."""
        batch = [self._commands.popleft()]
        while batch[0].kind is CommandKind.ACK and self._commands and self._commands[0].kind is CommandKind.ACK:
            batch.append(self._commands.popleft())
        return batch

    async def _apply(self, batch: Sequence[Command]) -> None:
        first = batch[0]
        match first.kind:
            case CommandKind.ACK:
                await self._consumer.ack_many([self._known(item.message_id) for item in batch])
                self._metrics.acknowledged(WEBSOCKET, len(batch))
            case CommandKind.NACK:
                await self._consumer.nack(self._known(first.message_id))
            case CommandKind.CUMULATIVE_ACK:
                await self._consumer.ack_cumulative(self._known(first.message_id))
                self._metrics.acknowledged(WEBSOCKET, 1)
            case CommandKind.SEEK:
                await self._seek(first)
            case CommandKind.UNSUBSCRIBE:
                await self._unsubscribe()
            case CommandKind.END_OF_TOPIC:
                await self._send(end_of_topic(self._consumer.has_reached_end))

    async def _unsubscribe(self) -> None:
        """Leave for good; the session goes on without messages. Where it fails, with them."""
        self._is_unsubscribing = True
        try:
            await self._consumer.unsubscribe()
        except HeliographError:
            self._is_unsubscribing = False
            raise

    async def _seek(self, item: Command) -> None:
        """Go elsewhere. Nothing from before the seek is sent after its answer."""
        await self._stop_pushing()
        try:
            assert item.position is not None, "a seek was checked for its position"
            await self._consumer.seek(self._place(item.position), inclusive=item.inclusive)
            self._unsent.clear()
            self._window.on_reset()
        finally:
            self._start_pushing()

    def _place(self, position: MessageId | str | int) -> MessageId | str | int:
        known = self._known(position) if isinstance(position, MessageId) else position
        return known if isinstance(known, MessageId | str | int) else known.message_id

    def _known(self, id_: MessageId | None) -> Message | MessageId:
        """The message itself where this session delivered it: it knows its topic and its entry, its id does not."""
        assert id_ is not None, "commands that name a message were checked for it"
        return self._delivered.get(id_, id_)


def consumer_options(query: Query, config: GatewayConfig) -> dict[str, Any]:
    """The client's options for the parameters of a consumer's URL.

    Raises:
        BadRequestError, UnsupportedError: naming the parameter.
    """
    query.refuse("subscriptionMode", "use a reader to read without a durable subscription", harmless=("Durable",))
    query.refuse("ackTimeoutMillis", "acknowledge negatively what was not processed", harmless=("0",))
    query.refuse("maxRedeliverCount", "dead letter topics are not offered over WebSocket")
    query.refuse("deadLetterTopic", "dead letter topics are not offered over WebSocket")
    query.choice("cryptoFailureAction", CRYPTO_FAILURE_ACTIONS, "FAIL")
    options: dict[str, Any] = {
        "type": TYPES[query.choice("subscriptionType", tuple(TYPES), "Exclusive")],
        "initial_position": POSITIONS[query.choice("subscriptionInitialPosition", tuple(POSITIONS), "Latest")],
        "receiver_queue": receiver_queue(query),
        "receiver_bytes_max": config.receiver_bytes_max,
        "nack_delay_ms": query.integer("negativeAckRedeliveryDelay", NACK_DELAY_MS, high=NACK_DELAY_MS_MAX),
        "priority_level": query.integer("priorityLevel", 0, high=PRIORITY_LEVEL_MAX),
    }
    if name := query.text("consumerName"):
        options["name"] = name
    return options


def receiver_queue(query: Query) -> int:
    """``receiverQueueSize``, at least 1 and capped as Pulsar caps it."""
    return max(1, min(query.integer("receiverQueueSize", RECEIVER_QUEUE_MAX), RECEIVER_QUEUE_MAX))


def _window(query: Query) -> Window:
    if query.boolean("pullMode", False):
        return PermitWindow()
    return PushWindow(receiver_queue(query))


@router.websocket("/ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}")
async def consumer_endpoint(
    websocket: WebSocket,
    services: ServicesDep,
    domain: str,
    tenant: str,
    namespace: str,
    topic: str,
    subscription: str,
) -> None:
    """A WebSocket consumer of one topic."""

    async def open_session() -> ConsumerSession:
        name = topic_name(domain, tenant, namespace, topic)
        query = Query(websocket.query_params)
        options, window = consumer_options(query, services.config), _window(query)
        consumer = await services.client.consumer(str(name), subscription_name(subscription), **options)
        return ConsumerSession(websocket, services, consumer, window)

    await serve(websocket, services, "consumer", open_session)


@router.websocket("/ws/v3/consumer/{subscription}")
async def multi_topic_consumer_endpoint(websocket: WebSocket, services: ServicesDep, subscription: str) -> None:
    """A WebSocket consumer of several topics."""

    async def open_session() -> ConsumerSession:
        query = Query(websocket.query_params)
        options, window = consumer_options(query, services.config), _window(query)
        topics = await topics_of(query, services.admin)
        consumer = await services.client.consumer(topics, subscription_name(subscription), **options)
        return ConsumerSession(websocket, services, consumer, window)

    await serve(websocket, services, "consumer", open_session)
