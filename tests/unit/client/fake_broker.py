"""A broker in memory behind a loopback socket, for the client's tests.

It speaks enough of the protocol for stock clients too, and a test can alter every answer: receipts held back, commands
refused, connections cut, lookups redirected.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Self

from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame
from heliograph.protocol.message_id import to_signed

T = pb.BaseCommand
EARLIEST = (-1, -1)


@dataclass(eq=False)
class FakeConsumer:
    connection: FakeConnection
    consumer_id: int
    permits: int = 0
    unacked: dict[int, int] = field(default_factory=dict)  # entry -> redelivery count it was sent with


@dataclass(eq=False)
class FakeSubscription:
    topic: FakeTopic
    sub_type: int
    position: int  # next entry to read
    durable: bool
    acked: dict[int, int] = field(default_factory=dict)  # entry -> bits left; 0 is done
    replay: deque[tuple[int, int]] = field(default_factory=deque)  # entry, redelivery count
    consumers: list[FakeConsumer] = field(default_factory=list)

    def dispatch(self) -> None:
        while (consumer := next((each for each in self.consumers if each.permits > 0), None)) is not None:
            if self.replay:
                index, count = self.replay.popleft()
            elif self.position < len(self.topic.entries):
                index, count = self.position, 0
                self.position += 1
            else:
                return
            if self.acked.get(index) != 0:
                self.push(consumer, index, count)
                self.consumers.append(self.consumers.pop(self.consumers.index(consumer)))

    def push(self, consumer: FakeConsumer, index: int, count: int) -> None:
        section = self.topic.entries[index]
        consumer.permits -= entries.message_count(entries.metadata_of(section))
        consumer.unacked[index] = count
        message = pb.CommandMessage(consumer_id=consumer.consumer_id, redelivery_count=count)
        message.message_id.ledger_id, message.message_id.entry_id = self.topic.ledger_id, index
        if (bits := self.acked.get(index)) is not None:
            message.ack_set.extend(
                to_signed(bits >> shift & (1 << 64) - 1) for shift in range(0, bits.bit_length(), 64)
            )
        consumer.connection.write(encode_payload_frame(T(type=T.MESSAGE, message=message), section))

    def leave(self, consumer: FakeConsumer) -> None:
        self.consumers.remove(consumer)
        self.replay.extend(sorted(consumer.unacked.items()))
        self.dispatch()


@dataclass(eq=False)
class FakeTopic:
    ledger_id: int
    entries: list[bytes] = field(default_factory=list)
    subscriptions: dict[str, FakeSubscription] = field(default_factory=dict)


class FakeStore:
    """The topics, which all fake brokers of a test share."""

    def __init__(self) -> None:
        ledger_ids = itertools.count(7)
        self.topics: dict[str, FakeTopic] = defaultdict(lambda: FakeTopic(next(ledger_ids)))
        self.partitions: dict[str, int] = {}


class FakeBroker:
    """One broker; used as ``async with FakeBroker() as broker``."""

    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore()
        self.url = ""
        self.connections: list[FakeConnection] = []
        self.commands: list[pb.BaseCommand] = []  # everything received, in order
        self.redirects: dict[str, str] = {}  # topic -> address
        self.assigns = True  # whether it redirects to brokers that do not have the topic yet
        self.refusals: dict[int, deque[tuple[pb.ServerError, str]]] = defaultdict(deque)  # command type -> answers
        self.silent: set[int] = set()  # command types that are not answered
        self.silent_after: dict[int, int] = {}  # command type -> how many are answered before it falls silent
        self.receipts_held: list[tuple[FakeConnection, bytes]] | None = None
        self.max_message_bytes = 5 << 20
        self.closes_on_seek = True
        self.takes_admin_calls = False
        self.is_blocked = False  # what it says of every consumer
        self._server: asyncio.Server | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"pulsar://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()

    def take(self, connection: FakeConnection, request: pb.CommandAdminCall) -> None:
        raise AssertionError("this broker takes no administration")

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def of_type(self, kind: int) -> list[pb.BaseCommand]:
        return [command for command in self.commands if command.type == kind]

    def hold_receipts(self) -> None:
        self.receipts_held = []

    def release_receipts(self) -> None:
        held, self.receipts_held = self.receipts_held or [], None
        for connection, frame in held:
            connection.write(frame)

    def refuse(self, kind: int, code: pb.ServerError, message: str = "refused by the test") -> None:
        self.refusals[kind].append((code, message))


class FakeConnection(asyncio.Protocol):
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.decoder = PulsarFrameDecoder()
        self.producers: dict[int, FakeTopic] = {}
        self.consumers: dict[int, tuple[FakeSubscription, FakeConsumer]] = {}
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.connections.remove(self)
        for consumer_id in list(self.consumers):
            self.remove_consumer(consumer_id)

    def data_received(self, data: bytes) -> None:
        for command, section in self.decoder.feed(data):
            copy = T.FromString(command.SerializeToString())
            self.broker.commands.append(copy)
            self.handle(command, section)

    def abort(self) -> None:
        self.transport.abort()

    def write(self, frame: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(frame)

    def answer(self, **sub_command: Any) -> None:
        ((name, value),) = sub_command.items()
        self.write(encode_command(T(type=name.upper(), **{name: value})))

    def handle(self, command: pb.BaseCommand, section: memoryview | None) -> None:
        kind = command.type
        after = self.broker.silent_after.get(kind)
        if kind in self.broker.silent or (after is not None and len(self.broker.of_type(kind)) > after):
            return
        name = T.Type.Name(kind).lower()
        request = getattr(command, name)
        if self.broker.refusals[kind]:
            self.refuse(kind, request, *self.broker.refusals[kind].popleft())
            return
        handler = getattr(self, f"on_{name}", None)
        assert handler is not None, f"the fake broker has no answer to {name}"
        if section is not None:
            handler(request, section)
        else:
            handler(request)

    def refuse(self, kind: int, request: Any, code: pb.ServerError, message: str) -> None:
        if kind == T.LOOKUP:
            failed = pb.CommandLookupResponse.FAILED
            answer = pb.CommandLookupResponse(
                response=failed, request_id=request.request_id, error=code, message=message
            )
            self.answer(lookup_response=answer)
        elif kind == T.SEND:
            error = pb.CommandSendError(
                producer_id=request.producer_id, sequence_id=request.sequence_id, error=code, message=message
            )
            self.answer(send_error=error)
        elif kind == T.ACK:
            self.answer(
                ack_response=pb.CommandAckResponse(
                    consumer_id=request.consumer_id, error=code, message=message, request_id=request.request_id
                )
            )
        else:
            request_id = 0 if kind == T.CONNECT else request.request_id
            self.answer(error=pb.CommandError(request_id=request_id, error=code, message=message))

    def on_connect(self, request: pb.CommandConnect) -> None:
        version = min(request.protocol_version, 20)
        connected = pb.CommandConnected(
            server_version="fake", protocol_version=version, max_message_size=self.broker.max_message_bytes
        )
        connected.feature_flags.takes_admin_calls = self.broker.takes_admin_calls
        self.answer(connected=connected)

    def on_admin_call(self, request: pb.CommandAdminCall) -> None:
        self.broker.take(self, request)

    def on_ping(self, request: pb.CommandPing) -> None:
        self.answer(pong=pb.CommandPong())

    def on_pong(self, request: pb.CommandPong) -> None:
        pass

    def on_auth_response(self, request: pb.CommandAuthResponse) -> None:
        pass

    def on_partitioned_metadata(self, request: pb.CommandPartitionedMetadata) -> None:
        count = self.broker.store.partitions.get(request.topic, 0)
        self.answer(
            partitioned_metadata_response=pb.CommandPartitionedMetadataResponse(
                partitions=count, request_id=request.request_id, response=pb.CommandPartitionedMetadataResponse.SUCCESS
            )
        )

    def on_lookup(self, request: pb.CommandLookup) -> None:
        elsewhere = self.broker.redirects.get(request.topic)
        result = pb.CommandLookupResponse.REDIRECT if elsewhere else pb.CommandLookupResponse.CONNECT
        self.answer(
            lookup_response=pb.CommandLookupResponse(
                url=elsewhere or self.broker.url,
                response=result,
                request_id=request.request_id,
                authoritative=self.broker.assigns,
            )
        )

    def on_producer(self, request: pb.CommandProducer) -> None:
        self.producers[request.producer_id] = self.broker.store.topics[request.topic]
        self.answer(
            producer_success=pb.CommandProducerSuccess(
                request_id=request.request_id, producer_name=request.producer_name or "fake-1", last_sequence_id=-1
            )
        )

    def on_send(self, request: pb.CommandSend, section: memoryview) -> None:
        entries.verify(section)
        topic = self.producers.get(request.producer_id)
        if topic is None:
            return  # sent before the client saw the closing
        topic.entries.append(bytes(section))
        receipt = pb.CommandSendReceipt(producer_id=request.producer_id, sequence_id=request.sequence_id)
        receipt.message_id.ledger_id, receipt.message_id.entry_id = topic.ledger_id, len(topic.entries) - 1
        frame = encode_command(T(type=T.SEND_RECEIPT, send_receipt=receipt))
        if self.broker.receipts_held is not None:
            self.broker.receipts_held.append((self, frame))
        else:
            self.write(frame)
        for subscription in topic.subscriptions.values():
            subscription.dispatch()

    def on_close_producer(self, request: pb.CommandCloseProducer) -> None:
        self.producers.pop(request.producer_id, None)
        self.answer(success=pb.CommandSuccess(request_id=request.request_id))

    def on_subscribe(self, request: pb.CommandSubscribe) -> None:
        topic = self.broker.store.topics[request.topic]
        subscription = topic.subscriptions.get(request.subscription)
        if subscription is None:
            position = 0 if request.initial_position == pb.CommandSubscribe.EARLIEST else len(topic.entries)
            if request.HasField("start_message_id"):
                start = to_signed(request.start_message_id.entry_id)
                batched = request.start_message_id.batch_index >= 0
                position = min(start if batched else start + 1, len(topic.entries))
            subscription = FakeSubscription(topic, request.sub_type, position, request.durable)
            topic.subscriptions[request.subscription] = subscription
        if subscription.consumers and request.sub_type == pb.CommandSubscribe.EXCLUSIVE:
            busy = pb.CommandError(request_id=request.request_id, error=pb.CONSUMER_BUSY, message="has its consumer")
            self.answer(error=busy)
            return
        consumer = FakeConsumer(self, request.consumer_id)
        subscription.consumers.append(consumer)
        self.consumers[request.consumer_id] = subscription, consumer
        self.answer(success=pb.CommandSuccess(request_id=request.request_id))

    def on_flow(self, request: pb.CommandFlow) -> None:
        if request.consumer_id in self.consumers:
            subscription, consumer = self.consumers[request.consumer_id]
            consumer.permits += request.message_permits
            subscription.dispatch()

    def on_ack(self, request: pb.CommandAck) -> None:
        subscription, consumer = self.consumers[request.consumer_id]
        for place in request.message_id:
            index = to_signed(place.entry_id)
            bits = sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(place.ack_set))
            if request.ack_type == pb.CommandAck.CUMULATIVE:
                for earlier in range(index):
                    subscription.acked[earlier] = 0
            subscription.acked[index] = subscription.acked.get(index, bits) & bits
            if not subscription.acked[index]:
                consumer.unacked.pop(index, None)
        if request.HasField("request_id"):
            answer = pb.CommandAckResponse(consumer_id=request.consumer_id, request_id=request.request_id)
            self.answer(ack_response=answer)

    def on_redeliver_unack(self, request: pb.CommandRedeliverUnack) -> None:
        subscription, consumer = self.consumers[request.consumer_id]
        wanted = [to_signed(place.entry_id) for place in request.message_ids] or sorted(consumer.unacked)
        for index in wanted:
            if index in consumer.unacked:
                subscription.replay.append((index, consumer.unacked.pop(index) + 1))
        subscription.dispatch()

    def on_seek(self, request: pb.CommandSeek) -> None:
        subscription, consumer = self.consumers[request.consumer_id]
        count = len(subscription.topic.entries)
        position = 0
        if request.HasField("message_id"):
            position = max(0, min(to_signed(request.message_id.entry_id), count))
        else:
            times = [entries.metadata_of(section).publish_time for section in subscription.topic.entries]
            position = next((at for at, time in enumerate(times) if time >= request.message_publish_time), count)
        if self.broker.closes_on_seek:
            close = pb.CommandCloseConsumer(consumer_id=request.consumer_id, request_id=(1 << 64) - 1)
            self.answer(close_consumer=close)
            self.consumers.pop(request.consumer_id)
            subscription.consumers.remove(consumer)
        subscription.position = position
        subscription.replay.clear()
        subscription.acked.clear()
        consumer.unacked.clear()
        self.answer(success=pb.CommandSuccess(request_id=request.request_id))

    def on_get_last_message_id(self, request: pb.CommandGetLastMessageId) -> None:
        subscription, _ = self.consumers[request.consumer_id]
        answer = pb.CommandGetLastMessageIdResponse(request_id=request.request_id)
        count = len(subscription.topic.entries)
        for place, index in (
            (answer.last_message_id, count - 1),
            (answer.consumer_mark_delete_position, subscription.position - 1),
        ):
            place.ledger_id = subscription.topic.ledger_id
            place.entry_id = index & (1 << 64) - 1
        if count:
            metadata = entries.metadata_of(subscription.topic.entries[-1])
            if entries.is_batch(metadata):
                answer.last_message_id.batch_index = metadata.num_messages_in_batch - 1
        self.answer(get_last_message_id_response=answer)

    def on_consumer_stats(self, request: pb.CommandConsumerStats) -> None:
        answer = pb.CommandConsumerStatsResponse(request_id=request.request_id)
        answer.blocked_consumer_on_unacked_msgs = self.broker.is_blocked
        self.answer(consumer_stats_response=answer)

    def on_unsubscribe(self, request: pb.CommandUnsubscribe) -> None:
        subscription, _ = self.consumers.pop(request.consumer_id)
        subscriptions = subscription.topic.subscriptions
        for name in [name for name, each in subscriptions.items() if each is subscription]:
            del subscriptions[name]
        self.answer(success=pb.CommandSuccess(request_id=request.request_id))

    def on_close_consumer(self, request: pb.CommandCloseConsumer) -> None:
        self.remove_consumer(request.consumer_id)
        self.answer(success=pb.CommandSuccess(request_id=request.request_id))

    def remove_consumer(self, consumer_id: int) -> None:
        found = self.consumers.pop(consumer_id, None)
        if found is not None:
            subscription, consumer = found
            if consumer in subscription.consumers:
                subscription.leave(consumer)
            if not subscription.durable and not subscription.consumers:
                subscriptions = subscription.topic.subscriptions
                for name in [name for name, each in subscriptions.items() if each is subscription]:
                    del subscriptions[name]
