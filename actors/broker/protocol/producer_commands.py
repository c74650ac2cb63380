"""The commands PRODUCER, SEND and CLOSE_PRODUCER."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.authorization import HeldRight
from heliograph.actors.broker.producers.producer import AccessMode, ProducerChannel, PublishRequest, TopicProducer
from heliograph.actors.broker.protocol.connection import CPP_CLIENT, PulsarConnection
from heliograph.actors.broker.protocol.schema_commands import producer_schema
from heliograph.actors.broker.records.position import Position, to_unsigned
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    THE_LIMIT,
    TOO_LARGE,
    BadRequestError,
    ChecksumError,
    HeliographError,
    MessageTooLargeError,
    NotPermittedError,
    PolicyLimitError,
    ProducerBusyError,
    ProtocolError,
    ServiceNotReadyError,
    UnsupportedError,
)
from heliograph.operations.table import Right, Scope
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import ENTRY_MESSAGES_MAX, metadata_of
from heliograph.protocol.frame import FRAME_SLACK_BYTES
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import TopicName

PRODUCERS_MAX = 10_000  # of one connection
NAME_CHARACTERS_MAX = 256  # of a producer
CLOSED_PRODUCERS_MAX = 1_000  # of one connection; entries that a client still sends to these are dropped

PRODUCE = "Produce"  # in Pulsar's refusals

_MODES = {
    pb.ACCESS_SHARED: AccessMode.SHARED,
    pb.ACCESS_EXCLUSIVE: AccessMode.EXCLUSIVE,
    pb.ACCESS_WAIT_FOR_EXCLUSIVE: AccessMode.WAIT_FOR_EXCLUSIVE,
    pb.ACCESS_EXCLUSIVE_WITH_FENCING: AccessMode.EXCLUSIVE_WITH_FENCING,
}

log = logging.getLogger(__name__)


class ProducerCommands(ProducerChannel):
    """The producers of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        self._published = connection.published
        self._producers: dict[int, tuple[TopicProducer, BrokerTopic]] = {}
        self._receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)  # filled for each receipt: a new one would cost more
        self._send_receipt = self._receipt.send_receipt
        self._receipt_id = self._send_receipt.message_id
        self._has_highest = False  # whether the last receipt had a highest sequence id
        self._creating: dict[int, bool] = {}  # producer id -> whether its client closed it meanwhile
        self._closed: dict[int, None] = {}
        self._closing: dict[TopicProducer, int] = {}  # closed by its client, last receipt not sent -> request id
        connection.handlers[BaseCommand.PRODUCER] = self._producer
        connection.handlers[BaseCommand.SEND] = self._send
        connection.handlers[BaseCommand.CLOSE_PRODUCER] = self._close
        connection.refusals[BaseCommand.SEND] = self._send
        connection.on_lost.append(self._connection_lost)
        connection.opened.append(self._opened)

    @property
    @override
    def peer(self) -> str:
        return self.connection.peer

    @property
    @override
    def client_version(self) -> str:
        return self.connection.client_version

    # -- the channel of its producers

    @override
    def probe(self) -> None:
        self.connection.probe()

    @override
    def receipt(self, producer: TopicProducer, sequence_id: int, highest: int, position: Position) -> None:
        receipt, message_id = self._send_receipt, self._receipt_id
        receipt.producer_id = producer.producer_id
        receipt.sequence_id = sequence_id
        if highest:
            receipt.highest_sequence_id = highest
            self._has_highest = True
        elif self._has_highest:
            receipt.ClearField("highest_sequence_id")
            self._has_highest = False
        ledger_id, entry_id = position
        message_id.ledger_id = ledger_id if ledger_id >= 0 else to_unsigned(ledger_id)
        message_id.entry_id = entry_id if entry_id >= 0 else to_unsigned(entry_id)
        self.connection.send_receipt(self._receipt)

    @override
    def send_refused(self, producer: TopicProducer, sequence_id: int, error: HeliographError) -> None:
        # A C++ client fails an entry only on CHECKSUM_ERROR; on any other code it sends the entry again, without end.
        # Other clients fail it on NOT_ALLOWED_ERROR.
        is_cpp = self.connection.client_version.startswith(CPP_CLIENT)
        is_checksum_error = is_cpp or isinstance(error, ChecksumError)
        self.connection.send(
            BaseCommand(
                type=BaseCommand.SEND_ERROR,
                send_error=pb.CommandSendError(
                    producer_id=producer.producer_id,
                    sequence_id=sequence_id,
                    error=pb.CHECKSUM_ERROR if is_checksum_error else pb.NOT_ALLOWED_ERROR,
                    message=str(error),
                ),
            )
        )

    @override
    def send_failed(self, producer: TopicProducer, error: HeliographError, sequence_id: int) -> None:
        self.connection.send(
            BaseCommand(
                type=BaseCommand.SEND_ERROR,
                send_error=pb.CommandSendError(
                    producer_id=producer.producer_id,
                    sequence_id=sequence_id,
                    error=code_of(error),
                    message=str(error),
                ),
            )
        )
        self.connection.close()  # I12

    @override
    def settled(self, producer: TopicProducer, size: int) -> None:
        connection = self.connection
        self._published.settle(size)
        if connection.is_held_back:
            connection.resume_if_possible()
        if self._closing and producer.pending == 0:
            request_id = self._closing.pop(producer, None)
            if request_id is not None:
                self.connection.send_success(request_id)

    @override
    def throttle(self, seconds: float) -> None:
        self.connection.throttle(seconds)

    @override
    def became_ready(self, producer: TopicProducer) -> None:
        self._answer(producer, producer.request_id)

    @override
    def refused(self, producer: TopicProducer, error: HeliographError) -> None:
        producer.is_closed = True
        found = self._producers.get(producer.producer_id)
        if found is not None and found[0] is producer:
            self._forget(producer.producer_id)
            self.connection.send_error(producer.request_id, error)

    @override
    def close_producer(self, producer: TopicProducer) -> None:
        producer.is_closed = True
        found = self._producers.get(producer.producer_id)
        if found is None or found[0] is not producer:
            return
        self._forget(producer.producer_id)
        self.connection.send(
            BaseCommand(
                type=BaseCommand.CLOSE_PRODUCER,
                close_producer=pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=to_unsigned(-1)),
            )
        )

    # -- commands

    def _producer(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        wanted = command.producer
        found = self._producers.get(wanted.producer_id)
        if found is not None and found[0].epoch >= wanted.epoch:
            found[0].request_id = wanted.request_id
            self._answer(found[0], wanted.request_id)
            return None
        error: HeliographError | None = None
        if wanted.producer_id in self._creating:
            error = ServiceNotReadyError(f"producer {wanted.producer_id} is being created")
        elif len(self._producers) >= PRODUCERS_MAX:
            error = ProducerBusyError(
                "the connection has as many producers as it may: use another client",
                field="producers",
                limit=f"{PRODUCERS_MAX} producers of a connection",
            )
        elif self._role_is_full():
            most = self.connection.context.config.producers_per_role_max
            error = ProducerBusyError(
                "the role has as many producers as it may: close some, or raise producers_per_role_max",
                field="producers_per_role_max",
                limit=f"{most} producers",
            )
        if error is not None:
            self.connection.send_error(wanted.request_id, error)
            return None
        self._count(1)
        self._creating[wanted.producer_id] = False
        return self._create(wanted)

    def _role_is_full(self) -> bool:
        context = self.connection.context
        return 0 < context.config.producers_per_role_max <= context.producers_of_roles[self.connection.role]

    def _count(self, producers: int) -> None:
        """Count producers for the role of the connection, if it has one."""
        if self.connection.role:
            self.connection.context.producers_of_roles.add(self.connection.role, producers)

    async def _create(self, wanted: pb.CommandProducer) -> None:
        is_created = False
        try:
            context = self.connection.context
            name = TopicName.parse(wanted.topic)
            await self._check_rights(name, wanted.initial_subscription_name)
            topic = await self.connection.topic(name, may_create=True)
            _check_encryption(wanted.encrypted, topic)
            producer = self._new_producer(wanted)
            producer.schema_version = await producer_schema(context.schemas, topic, wanted)
            await _ensure_subscription(topic, wanted.initial_subscription_name)
            await topic.admission.admit(producer, context.producer_prefix)
            if self._creating.get(wanted.producer_id, True) or not self.connection.is_open:
                topic.admission.producers.remove(producer)
                raise ServiceNotReadyError("the producer was closed while it was being created")
            is_created = True
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
            return
        finally:
            if self._creating.pop(wanted.producer_id, None) is not None and not is_created:
                self._count(-1)
        self._closed.pop(wanted.producer_id, None)
        former = self._producers.get(wanted.producer_id)
        if former is not None:  # under another name or of another topic: no command can name it any more
            former[1].admission.producers.remove(former[0])
            self._count(-1)
        self._producers[wanted.producer_id] = (producer, topic)
        self._answer(producer, wanted.request_id)

    async def _check_rights(self, name: TopicName, initial_subscription: str) -> None:
        """Raise NotPermittedError unless the client may produce, and create the subscription if it names one."""
        authorizer = self.connection.context.authorizer
        await authorizer.check_client(self.connection, Right.PRODUCE, name, PRODUCE)
        if initial_subscription:
            await authorizer.check_client(self.connection, Right.CONSUME, name, "subscribe", initial_subscription)

    def _opened(self) -> Iterator[HeldRight]:
        for producer, topic in list(self._producers.values()):
            yield HeldRight(Right.PRODUCE, Scope.TOPIC, topic.name, None, partial(self._revoke, producer, topic))

    def _revoke(self, producer: TopicProducer, topic: BrokerTopic) -> None:
        """Close a producer whose client lost the right to it. Its entries in flight are stored all the same."""
        topic.admission.producers.remove(producer)
        if producer.is_ready:
            self.close_producer(producer)
        else:
            self.refused(producer, NotPermittedError(f"Client is not authorized to {PRODUCE}"))

    def _new_producer(self, wanted: pb.CommandProducer) -> TopicProducer:
        if len(wanted.producer_name) > NAME_CHARACTERS_MAX:
            raise BadRequestError(
                "the producer name is too long", field="producerName", limit=f"{NAME_CHARACTERS_MAX} characters"
            )
        producer = TopicProducer(
            wanted.producer_id,
            wanted.producer_name,
            wanted.epoch,
            self,
            mode=_MODES[wanted.producer_access_mode],
            topic_epoch=wanted.topic_epoch if wanted.HasField("topic_epoch") else None,
            request_id=wanted.request_id,
            metadata={pair.key: pair.value for pair in wanted.metadata},
        )
        producer.is_name_generated = not wanted.producer_name or not wanted.user_provided_producer_name
        return producer

    def _answer(self, producer: TopicProducer, request_id: int) -> None:
        success = pb.CommandProducerSuccess(
            request_id=request_id,
            producer_name=producer.name,
            last_sequence_id=producer.last_sequence_id,
            schema_version=producer.schema_version,
            producer_ready=producer.is_ready,
        )
        if producer.mode is not AccessMode.SHARED and producer.topic_epoch is not None:
            success.topic_epoch = producer.topic_epoch
        found = self._producers.get(producer.producer_id)
        if found is not None and (batching := found[1].policies.batching):
            success.batching = batching
        self.connection.send(BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=success))

    def _send(
        self, command: BaseCommand, section: memoryview | None, above_limit: BadRequestError | None = None
    ) -> None:
        """Publish an entry, or refuse it in turn. ``above_limit`` is the error of a command that is above a limit."""
        send = command.send
        producer_id = send.producer_id
        found = self._producers.get(producer_id)
        if found is None:
            if producer_id in self._closed or producer_id in self._creating:
                return
            raise ProtocolError(f"there is no producer {producer_id} on this connection")
        if section is None:
            raise ProtocolError("SEND has no entry")
        producer, topic = found
        if not producer.is_ready:
            raise ProtocolError(f"producer {producer_id} waits to become exclusive and may not send yet")
        size, policies = len(section), topic.policies
        context = self.connection.context
        if self._published.hold(size, context.config.connection_publish_bytes_max):
            self.connection.pause()
        chunk_uuid: str | None = None
        try:
            if producer.refusal is not None:  # of an earlier entry
                raise producer.refusal
            entry = TopicEntry.read(section, check=True, has_key_read=topic.delivers_by_key)
            if (chunk_uuid := entry.chunk_uuid) is not None:
                refused, why = producer.refused_chunks
                if refused == chunk_uuid and why is not None:
                    raise why
            if above_limit is not None:
                raise above_limit
            if entry.messages > ENTRY_MESSAGES_MAX:
                raise MessageTooLargeError(
                    f"an entry of {entry.messages} messages is too large",
                    field="num_messages_in_batch",
                    limit=f"{ENTRY_MESSAGES_MAX} messages",
                )
            if size > FRAME_SLACK_BYTES or policies.max_message_bytes:  # no limit but a topic's own is smaller
                self._check_size(size, topic)
            if policies.encryption_required and not entry.is_marker:  # else no entry pays for the question
                _check_encryption(bool(metadata_of(section).encryption_keys), topic)
            if entry.deliver_at_ms:
                _check_delay(entry.deliver_at_ms, topic)
        except (ChecksumError, BadRequestError, PolicyLimitError, ProtocolError) as error:
            producer.note_refusal(error, chunk_uuid)
            PublishRequest(producer, send.sequence_id, send.highest_sequence_id, 0, size).refuse(error)
            return
        topic.admission.send(
            entry, PublishRequest(producer, send.sequence_id, send.highest_sequence_id, entry.messages, size)
        )
        budget = context.publish_budget
        if budget.is_rated:
            self.connection.throttle(budget.spend(topic.name.tenant, entry.messages, size, time.monotonic()))

    def _check_size(self, size: int, topic: BrokerTopic) -> None:
        limit = self.connection.context.config.max_message_bytes + FRAME_SLACK_BYTES
        if topic.policies.max_message_bytes:
            limit = min(topic.policies.max_message_bytes, limit)
        if size > limit:
            text = f"{TOO_LARGE}an entry of {size} bytes{THE_LIMIT}{limit} bytes"
            raise MessageTooLargeError(text, field="payload", limit=f"{limit} bytes")

    def _close(self, command: BaseCommand, section: memoryview | None) -> None:
        request_id, producer_id = command.close_producer.request_id, command.close_producer.producer_id
        if producer_id in self._creating:
            self._creating[producer_id] = True
        found = self._producers.get(producer_id)
        if found is None:
            self.connection.send_success(request_id)
            return
        producer, topic = found
        self._forget(producer_id)
        producer.is_gone_for_good = producer.is_name_generated
        topic.admission.producers.remove(producer)
        if producer.pending:
            producer.is_closed = False  # its receipts are still sent
            self._closing[producer] = request_id
        else:
            self.connection.send_success(request_id)

    def _forget(self, producer_id: int) -> None:
        del self._producers[producer_id]
        self._count(-1)
        self._closed[producer_id] = None
        if len(self._closed) > CLOSED_PRODUCERS_MAX:
            del self._closed[next(iter(self._closed))]

    def _connection_lost(self) -> None:
        producers, self._producers = list(self._producers.values()), {}
        self._count(-len(producers) - len(self._creating))  # a task that has not begun does not end its work
        self._creating.clear()
        for producer, topic in producers:
            topic.admission.producers.remove(producer)


async def _ensure_subscription(topic: BrokerTopic, name: str) -> None:
    """Create the initial subscription that a producer asks for, at the oldest entry; dead letter producers do."""
    if not name or not topic.name.is_persistent or topic.has_subscription(name):
        return
    if not topic.policies.auto_create_subscriptions:
        raise UnsupportedError(
            f"subscriptions of {topic.name} are not created automatically", field="initialSubscriptionName"
        )
    await topic.subscribe(name, start=topic.ledger.chain.first)


def _check_delay(deliver_at_ms: int, topic: BrokerTopic) -> None:
    """Raise PolicyLimitError if an entry asks for a longer delay than the topic's policy allows."""
    limit = topic.policies.delayed_ms_max
    if limit and deliver_at_ms - wall_ms() > limit:
        raise PolicyLimitError(
            f"{topic.name} delays messages by at most {limit} ms", field="delayed_ms_max", limit=f"{limit} ms"
        )


def _check_encryption(is_encrypted: bool, topic: BrokerTopic) -> None:
    """Raise PolicyLimitError if the topic requires encryption and a producer or its entry has none."""
    if topic.policies.encryption_required and not is_encrypted:
        raise PolicyLimitError(f"{topic.name} requires encrypted messages", field="encryption_required")
