"""Pulsar's WebSocket consumer, for one topic or several; in push mode, or in pull mode by permits.

Flow control is in ``windows.py``, the frames are in ``frames.py``. Beyond Pulsar: cumulative acknowledgements, seek,
and an answer to any command that carries a context. No frame, however malformed, ends a session.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.websockets import WebSocket
from typing_extensions import override

from heliograph.base.errors import AlreadyClosedError, HeliographError, TopicTerminatedError
from heliograph.client.aio.consumer.interceptors import ConsumerInterceptor
from heliograph.gateway.errors import reason_of
from heliograph.gateway.http.metrics import WEBSOCKET
from heliograph.gateway.ports import ConsumerPort, MessagePort, without_payload
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.payload_forms import PayloadFormat
from heliograph.gateway.shapes.topics import subscription_name, topic_name
from heliograph.gateway.websocket.delivery import RECEIVE_SECONDS, DeliverySession
from heliograph.gateway.websocket.frames import (
    FAILED,
    AckCommand,
    ConsumerCommand,
    CumulativeAckCommand,
    EndOfTopicCommand,
    MessageCommand,
    NackCommand,
    PermitCommand,
    SeekCommand,
    UnsubscribeCommand,
    command_done,
    command_error,
    consumer_command,
    end_of_topic,
)
from heliograph.gateway.websocket.query import ConsumerQuery, TopicsQuery
from heliograph.gateway.websocket.topic_patterns import topics_of
from heliograph.gateway.websocket.upgrade import query_of, run_until_first, serve
from heliograph.gateway.websocket.windows import RECEIVER_QUEUE_MAX, DeliveryWindow, PermitWindow, PushWindow
from heliograph.protocol.message_id import MessageId

COMMANDS_MAX = 10_000  # frames read and not yet applied
DELIVERED_MAX = 10_000  # messages remembered without their payload, for their acknowledgement

router = APIRouter()


class WebSocketConsumerSession(DeliverySession):
    """One session with a WebSocket consumer: three loops that share a window."""

    def __init__(
        self,
        websocket: WebSocket,
        services: Services,
        consumer: ConsumerPort,
        window: DeliveryWindow,
        form: PayloadFormat,
    ) -> None:
        super().__init__(websocket, services, consumer, window, form)
        self._consumer = consumer
        self._commands: deque[ConsumerCommand] = deque()  # len <= COMMANDS_MAX
        self._commands_arrived = asyncio.Event()
        self._commands_room = asyncio.Event()
        self._unsent: deque[MessagePort] = deque()
        self._pushing: asyncio.Task[None] | None = None
        self._is_unsubscribing = False
        self._push_failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._delivered: OrderedDict[MessageId, MessagePort] = OrderedDict()  # without payloads, newest last

    async def run(self) -> None:
        """Serve the peer until it leaves."""
        self._start_pushing()
        try:
            await run_until_first(self._read_frames(), self._apply_commands(), self._watch_push())
        finally:
            await self._stop_pushing()
            if self._push_failed.done() and not self._push_failed.cancelled():
                self._push_failed.exception()  # retrieved, also where the peer left at the same moment

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
                room = await self._wait_for_room()
                if not self._unsent:
                    room = min(room, RECEIVER_QUEUE_MAX)
                    self._unsent.extend(await self._consumer.receive_many(room, RECEIVE_SECONDS))
                while self._unsent and self._window.room():
                    await self._send_message(self._unsent.popleft())
        except TopicTerminatedError:
            return  # the session continues: its peer may ask for the end of the topic, or seek
        except AlreadyClosedError as error:
            if not self._is_unsubscribing and not self._push_failed.done():
                self._push_failed.set_exception(error)
        except Exception as error:  # run() ends the session with it
            if not self._push_failed.done():
                self._push_failed.set_exception(error)

    @override
    async def _send_message(self, message: MessagePort) -> None:
        self._delivered[message.message_id] = without_payload(message)
        self._delivered.move_to_end(message.message_id)
        if len(self._delivered) > DELIVERED_MAX:
            self._delivered.popitem(last=False)
        try:
            await super()._send_message(message)
        except asyncio.CancelledError:  # a seek stopped the push; the seek may fail, so keep the message
            self._unsent.appendleft(message)
            self._window.on_permits(1)
            raise

    # -- reading commands

    @override
    async def _on_frame(self, text: str | None) -> None:
        """Take one command. The window counts it at once, so that delivery continues; it is applied in its turn."""
        command = consumer_command(text)
        match command:
            case CumulativeAckCommand():
                self._settle_up_to(command.messageId)
            case MessageCommand():
                self._window.on_settled(command.messageId)
            case PermitCommand():
                self._window.on_permits(command.permitMessages)
        self._room.set()
        self._commands.append(command)
        self._commands_arrived.set()
        while len(self._commands) >= COMMANDS_MAX:
            self._commands_room.clear()
            await self._commands_room.wait()

    def on_late(self, entries: Sequence[MessageId]) -> None:
        """Make room for messages that were not acknowledged in time: the broker delivers their entries again."""
        if isinstance(self._window, PushWindow):
            late = {(each.ledger_id, each.entry_id, each.partition) for each in entries}
            ids = [id_ for id_ in self._window.unsettled if isinstance(id_, MessageId)]
            self._window.on_settled_up_to(id_ for id_ in ids if (id_.ledger_id, id_.entry_id, id_.partition) in late)
            self._room.set()

    def _settle_up_to(self, last: MessageId) -> None:
        if isinstance(self._window, PushWindow):
            ids = [id_ for id_ in self._window.unsettled if isinstance(id_, MessageId)]
            self._window.on_settled_up_to(id_ for id_ in ids if id_ <= last and id_.partition == last.partition)

    # -- applying commands, in order

    async def _apply_commands(self) -> None:
        while True:
            await self._commands_arrived.wait()
            self._commands_arrived.clear()
            while self._commands:
                await self._apply_next()
                self._commands_room.set()

    async def _apply_next(self) -> None:
        batch = self._next_batch()
        try:
            await self._apply(batch)
        except HeliographError as error:
            for command in batch:
                await self._send(command_error(FAILED, reason_of(error), command.context))
            return
        for command in batch:  # I11: an answer says that the acknowledgement is durable
            if command.context is not None:
                await self._send(command_done(command.context))

    def _next_batch(self) -> list[ConsumerCommand]:
        """Return the next command, or all acknowledgements that come next: they share one durable write."""
        batch = [self._commands.popleft()]
        while isinstance(batch[0], AckCommand) and self._commands and isinstance(self._commands[0], AckCommand):
            batch.append(self._commands.popleft())
        return batch

    async def _apply(self, batch: Sequence[ConsumerCommand]) -> None:
        command = batch[0]
        match command:
            case AckCommand():
                ids = [item.messageId for item in batch if isinstance(item, AckCommand)]
                await self._consumer.ack_many([self._delivered_or_id(id_) for id_ in ids])
                self._metrics.acknowledged(WEBSOCKET, len(batch))
            case NackCommand():
                await self._consumer.nack(self._delivered_or_id(command.messageId))
            case CumulativeAckCommand():
                await self._consumer.ack_cumulative(self._delivered_or_id(command.messageId))
                self._metrics.acknowledged(WEBSOCKET, 1)
            case SeekCommand():
                await self._seek(command)
            case UnsubscribeCommand():
                await self._unsubscribe()
            case EndOfTopicCommand():
                await self._send(end_of_topic(self._consumer.has_reached_end))

    async def _unsubscribe(self) -> None:
        """Delete the subscription. The session continues without messages, or with them if the deletion failed."""
        self._is_unsubscribing = True
        try:
            await self._consumer.unsubscribe()
        except HeliographError:
            self._is_unsubscribing = False
            raise

    async def _seek(self, command: SeekCommand) -> None:
        """Continue elsewhere. No message from before the seek is sent after its answer."""
        await self._stop_pushing()
        try:
            await self._consumer.seek(self._seek_target(command), inclusive=command.inclusive)
            self._unsent.clear()
            self._window.on_reset()
        finally:
            self._start_pushing()

    def _seek_target(self, command: SeekCommand) -> MessageId | str | int:
        if command.timestamp is not None:
            return command.timestamp
        assert command.messageId is not None, "the frame was checked for one of the two"
        if isinstance(command.messageId, str):
            return command.messageId
        known = self._delivered_or_id(command.messageId)
        return known if isinstance(known, MessageId) else known.message_id

    def _delivered_or_id(self, id_: MessageId) -> MessagePort | MessageId:
        """Return the message where this session delivered it: it knows its topic and its entry, its id does not."""
        return self._delivered.get(id_, id_)


class _LateEntries(ConsumerInterceptor):
    """Tells a session of the entries that its peer did not acknowledge within ``ackTimeoutMillis``."""

    def __init__(self) -> None:
        self.session: WebSocketConsumerSession | None = None  # set once the consumer is open

    @override
    def on_ack_timeout(self, message_ids: Sequence[MessageId]) -> None:
        if self.session is not None:
            self.session.on_late(message_ids)


async def _subscribe(
    websocket: WebSocket,
    services: Services,
    topics: str | list[str],
    subscription: str,
    query: ConsumerQuery,
    bytes_max: int,
) -> WebSocketConsumerSession:
    name = subscription_name(subscription)
    late = _LateEntries()
    watching: dict[str, Any] = {"interceptors": (late,)} if query.ack_timeout_ms else {}
    consumer = await services.client.consumer(topics, name, receiver_bytes_max=bytes_max, **watching, **query.options())
    window = PermitWindow() if query.pullMode else PushWindow(query.receiver_queue)
    late.session = WebSocketConsumerSession(websocket, services, consumer, window, query.payloadFormat)
    return late.session


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
    async def open_session() -> WebSocketConsumerSession:
        name = topic_name(domain, tenant, namespace, topic)
        query = await query_of(ConsumerQuery, websocket)
        return await _subscribe(websocket, services, str(name), subscription, query, bytes_max)

    with services.receivers.taken() as bytes_max:
        await serve(websocket, services, "consumer", open_session)


@router.websocket("/ws/v3/consumer/{subscription}")
async def multi_topic_consumer_endpoint(websocket: WebSocket, services: ServicesDep, subscription: str) -> None:
    async def open_session() -> WebSocketConsumerSession:
        query = await query_of(TopicsQuery, websocket)
        topics = await topics_of(query, services.admin)
        return await _subscribe(websocket, services, topics, subscription, query, bytes_max)

    with services.receivers.taken() as bytes_max:
        await serve(websocket, services, "consumer", open_session)
