"""SUBSCRIBE and the later commands of a consumer, except for acknowledgements (``ack_commands.py``)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, NamedTuple

from typing_extensions import override

from heliograph.actors.broker.authorization import HeldRight
from heliograph.actors.broker.dispatch.dispatcher import CrashBudget
from heliograph.actors.broker.protocol.active_consumer import ActiveConsumerChanges
from heliograph.actors.broker.protocol.command_limits import IDS_IN_TURN
from heliograph.actors.broker.protocol.connection import CPP_CLIENT, PulsarConnection
from heliograph.actors.broker.protocol.schema_commands import check_consumer_schema
from heliograph.actors.broker.protocol.subscribe_options import (
    TYPES,
    check_type,
    index_of,
    set_key_sharing,
    start_index,
)
from heliograph.actors.broker.records.position import Position, from_unsigned, to_unsigned
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import ConsumerChannel, SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import iso_time
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    ConsumerAssignError,
    ConsumerBusyError,
    HeliographError,
    NotFoundError,
    ServiceNotReadyError,
    UnsupportedError,
)
from heliograph.operations.table import Right, Scope
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import TAKES_PARTS
from heliograph.protocol.message_id import bits_of, words_of
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import TopicName

RETURN_SKIPPED = (CPP_CLIENT, "Pulsar-Go-")  # they ask again for the messages of a batch that were not sent to them
# Java's clients from 4 on take the messages that a delivery leaves out for acknowledged: their grouped acknowledgements
# hide a later part of the same entry, and name the messages of others.
JAVA_CLIENT, EARLIER_JAVA = "Pulsar-Java-v", ("Pulsar-Java-v2.", "Pulsar-Java-v3.")
CONSUMERS_MAX = 10_000  # of one connection
COMMON_MESSAGES_MAX = 64  # commands of one connection that are filled again, one for each kind # I15

_Kind = tuple[int, int | None]  # what many messages share: partition, -1 for none, and epoch of their consumer
_Message = tuple[BaseCommand, pb.CommandMessage, pb.MessageIdData]  # MESSAGE, and the parts that differ

log = logging.getLogger(__name__)


class Subscribed(NamedTuple):
    """A consumer of this connection, its subscription and its topic."""

    consumer: SubscriptionConsumer
    subscription: Subscription
    topic: BrokerTopic


class ConsumerCommands(ConsumerChannel):
    """The consumers of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        self.consumers: dict[int, Subscribed] = {}
        self.long_lists = 0  # of acknowledgements, which are handled in parts, one list after the other
        self.in_turn = asyncio.Lock()
        self._common: dict[_Kind, _Message] = {}
        self._subscribing: dict[int, bool] = {}  # consumer id -> whether its client closed it meanwhile
        self._active = ActiveConsumerChanges(connection)
        handlers = connection.handlers
        handlers[BaseCommand.SUBSCRIBE] = self._subscribe
        handlers[BaseCommand.FLOW] = self._flow
        handlers[BaseCommand.REDELIVER_UNACK] = self._redeliver
        handlers[BaseCommand.UNSUBSCRIBE] = lambda command, _: self._unsubscribe(command.unsubscribe)
        handlers[BaseCommand.CLOSE_CONSUMER] = self._close
        handlers[BaseCommand.SEEK] = lambda command, _: self._seek(command.seek)
        handlers[BaseCommand.GET_LAST_MESSAGE_ID] = lambda command, _: self._last_message(command.get_last_message_id)
        handlers[BaseCommand.CONSUMER_STATS] = self._stats
        connection.refusals[BaseCommand.REDELIVER_UNACK] = lambda one, *_: self.close_refused(one.redeliver_unack)
        connection.on_lost.append(self._connection_lost)
        connection.opened.append(self._opened)
        connection.on_writable.append(self._writable)

    # -- the channel of its consumers

    @property
    @override
    def peer(self) -> str:
        return self.connection.peer

    @property
    @override
    def client_version(self) -> str:
        return self.connection.client_version

    @override
    def probe(self) -> asyncio.Future[None]:
        return self.connection.probe()

    @override
    def push(
        self,
        consumer: SubscriptionConsumer,
        position: Position,
        entry: TopicEntry,
        redelivery_count: int,
        bits: int | None,
        is_alone: bool,
        crashes: int,
        lone_crashes: int = 0,
    ) -> None:
        kind = (consumer.partition, consumer.epoch)
        if redelivery_count or crashes or bits is not None:
            command, message, message_id = _new_message(*kind)
            if redelivery_count:
                message.redelivery_count = redelivery_count
            if crashes:
                message.crashes = crashes
            if lone_crashes:
                message.lone_crashes = lone_crashes
            if bits is not None:
                message.ack_set.extend(words_of(bits))
        else:
            command, message, message_id = self._common.get(kind) or self._common_message(kind)
        message.consumer_id = consumer.consumer_id
        message_id.ledger_id = position.ledger_id
        message_id.entry_id = position.entry_id
        section = entry.payload
        if entry.broker_bytes and not self.connection.takes_broker_metadata:
            section = entry.client_bytes()
        self.connection.send_payload(command, section, is_alone=is_alone)

    def _common_message(self, kind: _Kind) -> _Message:
        """Make a MESSAGE without what few messages have, to fill for each entry: a new one costs more."""
        if len(self._common) >= COMMON_MESSAGES_MAX:
            self._common.clear()
        common = self._common[kind] = _new_message(*kind)
        return common

    @override
    def close_consumer(self, consumer: SubscriptionConsumer) -> None:
        found = self.consumers.get(consumer.consumer_id)
        if found is None or found.consumer is not consumer:
            return
        self._forget(consumer.consumer_id)
        self._tell_closed(consumer.consumer_id)

    def close_refused(self, refused: pb.CommandAck | pb.CommandRedeliverUnack) -> None:
        """Close the consumer of a command that exceeds a limit and has no answer; its messages are redelivered."""
        self._remove(refused.consumer_id)
        self._tell_closed(refused.consumer_id)

    @override
    def reached_end(self, consumer: SubscriptionConsumer) -> None:
        # The C++ client, and those built on it, take the command for an error and reconnect.
        if not self.connection.client_version.startswith(CPP_CLIENT):
            end = pb.CommandReachedEndOfTopic(consumer_id=consumer.consumer_id)
            self.connection.send(BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC, reached_end_of_topic=end))

    @override
    def active_changed(self, consumer: SubscriptionConsumer, is_active: bool) -> None:
        found = self.consumers.get(consumer.consumer_id)
        if found is not None and found.consumer is consumer:
            self._active.changed(consumer.consumer_id, is_active)

    # -- subscribing and closing

    def _subscribe(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        wanted = command.subscribe
        if wanted.consumer_id in self.consumers:
            self.connection.send_success(wanted.request_id)
            return None
        error: HeliographError | None = None
        if wanted.consumer_id in self._subscribing:
            error = ServiceNotReadyError(f"consumer {wanted.consumer_id} is being created")
        elif len(self.consumers) >= CONSUMERS_MAX:
            error = ConsumerBusyError(
                "the connection has as many consumers as it may: use another client",
                field="consumers",
                limit=f"{CONSUMERS_MAX} consumers of a connection",
            )
        if error is not None:
            self.connection.send_error(wanted.request_id, error)
            return None
        self._subscribing[wanted.consumer_id] = False
        return self._create(wanted)

    async def _create(self, wanted: pb.CommandSubscribe) -> None:
        try:
            await self._check_right(TopicName.parse(wanted.topic), wanted.subscription, "subscribe")
            found = await self._connect(wanted) or await self._connect(wanted, is_last=True)
            assert found is not None, "the last attempt succeeds or raises"
            self.consumers[wanted.consumer_id] = found
            self.connection.has_consumers = True
            if found.subscription.kind is SubscriptionType.FAILOVER:
                self._active.subscribed(wanted.consumer_id)
            self.connection.send_success(wanted.request_id)
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
        finally:
            del self._subscribing[wanted.consumer_id]

    async def _check_right(self, topic: TopicName, subscription: str, command: str) -> None:
        """Raise NotPermittedError unless the client may consume by a subscription."""
        authorizer = self.connection.context.authorizer
        await authorizer.check_client(self.connection, Right.CONSUME, topic, command, subscription)

    def _opened(self) -> Iterator[HeldRight]:
        for found in list(self.consumers.values()):
            name = found.subscription.name
            yield HeldRight(Right.CONSUME, Scope.SUBSCRIPTION, found.topic.name, name, partial(self._revoke, found))

    def _revoke(self, found: Subscribed) -> None:
        """Close a consumer whose client lost the right to it. Its unacknowledged messages go to others."""
        consumer_id = found.consumer.consumer_id
        if self.consumers.get(consumer_id) is found:
            self._remove(consumer_id)
            self._tell_closed(consumer_id)

    async def _connect(self, wanted: pb.CommandSubscribe, *, is_last: bool = False) -> Subscribed | None:
        """Connect a consumer. Return None if its place is taken, once the clients that have it were probed."""
        topic, subscription = await self._subscription_for(wanted, is_again=is_last)
        try:
            return await self._join(wanted, topic, subscription, is_last)
        except HeliographError:
            topic.drop_if_idle(subscription)  # it may have been created for this consumer
            raise

    async def _join(
        self, wanted: pb.CommandSubscribe, topic: BrokerTopic, subscription: Subscription, is_last: bool
    ) -> Subscribed | None:
        if self._subscribing[wanted.consumer_id] or not self.connection.is_open:
            raise ServiceNotReadyError("the consumer was closed while it was being created")
        consumer = self._new_consumer(wanted, topic)
        topic.check_consumers()
        kind = TYPES[wanted.sub_type]
        check_type(kind, topic)
        try:
            subscription.add_consumer(consumer, kind)
        except (ConsumerBusyError, ConsumerAssignError):
            probed = [channel.probe() for channel in subscription.holders(consumer, kind)]
            if is_last or not probed:
                raise
            await asyncio.wait(probed)
            return None
        topic.delivers_by_key |= subscription.dispatcher.delivers_by_key
        return Subscribed(consumer, subscription, topic)

    def _new_consumer(self, wanted: pb.CommandSubscribe, topic: BrokerTopic) -> SubscriptionConsumer:
        consumer = SubscriptionConsumer(
            wanted.consumer_id,
            wanted.consumer_name,
            max(wanted.priority_level, 0),
            topic.name.partition,
            self,
            {pair.key: pair.value for pair in wanted.metadata},
        )
        consumer.state.is_writable = self.connection.is_writable
        version = self.connection.client_version
        consumer.state.returns_skipped = version.startswith(RETURN_SKIPPED)
        consumer.state.follows_sets = version.startswith(JAVA_CLIENT) and not version.startswith(EARLIER_JAVA)
        consumer.state.takes_parts = consumer.metadata.get(TAKES_PARTS) == "true" and not consumer.state.follows_sets
        if wanted.HasField("consumer_epoch"):
            consumer.epoch = wanted.consumer_epoch
        set_key_sharing(consumer, wanted)
        return consumer

    async def _subscription_for(
        self, wanted: pb.CommandSubscribe, *, is_again: bool
    ) -> tuple[BrokerTopic, Subscription]:
        if not wanted.subscription:
            raise BadRequestError("the subscription has no name", field="subscription")
        if wanted.read_compacted and wanted.sub_type not in (wanted.EXCLUSIVE, wanted.FAILOVER):
            raise UnsupportedError(
                "only Exclusive and Failover consumers can read the compacted topic", field="readCompacted"
            )
        if wanted.replicate_subscription_state:
            raise UnsupportedError(
                "the state of a subscription is not replicated, there is one cluster: subscribe without "
                "replicateSubscriptionState",
                field="replicateSubscriptionState",
            )
        name = TopicName.parse(wanted.topic)
        topic = await self.connection.topic(name, may_create=wanted.force_topic_creation)
        if not is_again:
            self._check_rate(wanted, topic)
        await check_consumer_schema(self.connection.context.schemas, topic, wanted)
        chain, reader = await topic.view(wanted.read_compacted)
        subscription = await topic.subscribe(
            wanted.subscription,
            start=await start_index(topic, chain, wanted),
            view=(chain, reader) if wanted.read_compacted else None,
            is_durable=wanted.durable,
            properties={pair.key: pair.value for pair in wanted.subscription_properties},
            may_create=topic.policies.auto_create_subscriptions or not wanted.durable,
        )
        return topic, subscription

    def _check_rate(self, wanted: pb.CommandSubscribe, topic: BrokerTopic) -> None:
        """Raise ServiceNotReadyError, after which clients try again later, if a consumer subscribes too often."""
        host = self.peer.rpartition(":")[0]
        if not topic.subscribe_limit.admit((host, wanted.consumer_name, wanted.consumer_id), time.monotonic()):
            raise ServiceNotReadyError(
                f"consumer {wanted.consumer_name or wanted.consumer_id} of {host} subscribes to {topic.name} "
                "more often than the subscribe rate allows"
            )

    def _close(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        if self.long_lists:
            return self._close_later(command)
        self._close_now(command)
        return None

    async def _close_later(self, command: BaseCommand) -> None:
        """Close a consumer after the long lists of acknowledgements that the client sent before."""
        async with self.in_turn:
            self._close_now(command)

    def _close_now(self, command: BaseCommand) -> None:
        consumer_id = command.close_consumer.consumer_id
        if consumer_id in self._subscribing:
            self._subscribing[consumer_id] = True
        self._remove(consumer_id)
        self.connection.send_success(command.close_consumer.request_id)

    async def _unsubscribe(self, wanted: pb.CommandUnsubscribe) -> None:
        is_gone = False
        try:
            consumer, subscription, topic = self._find(wanted.consumer_id)
            await self._check_right(topic.name, subscription.name, "unsubscribe")
            self._find(wanted.consumer_id)  # it may be gone by now
            if len(subscription.consumers) > 1 and not wanted.force:
                raise ConflictError("the subscription has other consumers; close them or force the unsubscription")
            self._forget(wanted.consumer_id)
            subscription.remove_consumer(consumer)
            topic.drop_if_idle(subscription)
            is_gone = True
            if subscription.is_durable:
                await topic.unsubscribe(subscription.name, force=wanted.force)
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
            if is_gone:  # the client takes an error for a consumer that is still connected
                self._tell_closed(wanted.consumer_id)
        else:
            self.connection.send_success(wanted.request_id)

    def _tell_closed(self, consumer_id: int) -> None:
        closed = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=to_unsigned(-1))
        self.connection.send(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer=closed))

    def _connection_lost(self) -> None:
        crashes = CrashBudget()
        for consumer_id in list(self.consumers):
            self._remove(consumer_id, crashes)

    def _remove(self, consumer_id: int, crashes: CrashBudget | None = None) -> None:
        if (found := self._forget(consumer_id)) is not None:
            found.subscription.remove_consumer(found.consumer, crashes)
            found.topic.drop_if_idle(found.subscription)

    def _forget(self, consumer_id: int) -> Subscribed | None:
        self._active.forget(consumer_id)
        found = self.consumers.pop(consumer_id, None)
        self.connection.has_consumers = bool(self.consumers)
        return found

    # -- permits and redelivery

    def _flow(self, command: BaseCommand, section: memoryview | None) -> None:
        found = self.consumers.get(command.flow.consumer_id)
        if found is not None:
            self._active.listens(command.flow.consumer_id)
            flow = command.flow
            if flow.HasField("in_hand"):
                position = from_unsigned(flow.in_hand.ledger_id, flow.in_hand.entry_id)
                found.consumer.note_in_hand(found.subscription.chain.find(position), max(flow.in_hand.batch_index, 0))
            found.subscription.flow(found.consumer, flow.message_permits, takes_back=flow.takes_back)

    def _redeliver(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        wanted = command.redeliver_unack
        entries = [
            (from_unsigned(data.ledger_id, data.entry_id), bits_of(data.ack_set) if data.ack_set else 0)
            for data in wanted.message_ids
        ]
        epoch = wanted.consumer_epoch if wanted.HasField("consumer_epoch") else None
        if len(entries) > IDS_IN_TURN and epoch is None:
            return self._redeliver_many(wanted, entries)
        found = self.consumers.get(wanted.consumer_id)
        if found is not None:
            found.subscription.redeliver(found.consumer, entries, epoch, is_unhandled=wanted.is_unhandled)
        return None

    async def _redeliver_many(self, wanted: pb.CommandRedeliverUnack, entries: list[tuple[Position, int]]) -> None:
        """Redeliver a long list in parts, between which other clients have a turn."""
        for start in range(0, len(entries), IDS_IN_TURN):
            found = self.consumers.get(wanted.consumer_id)
            if found is None:
                return
            part = entries[start : start + IDS_IN_TURN]
            found.subscription.redeliver(found.consumer, part, None, is_unhandled=wanted.is_unhandled)
            await asyncio.sleep(0)

    def _writable(self, is_writable: bool) -> None:
        for consumer, subscription, _ in self.consumers.values():
            subscription.set_writable(consumer, is_writable)

    # -- seeking and statistics

    async def _seek(self, wanted: pb.CommandSeek) -> None:
        try:
            _, subscription, topic = self._find(wanted.consumer_id)
            await self._check_right(topic.name, subscription.name, "seek")
            bits = None
            if wanted.HasField("message_id"):
                position = from_unsigned(wanted.message_id.ledger_id, wanted.message_id.entry_id)
                mark = await index_of(subscription.chain, position)
                if subscription.chain.find(position) is not None:  # the bits are of this entry only
                    bits = bits_of(wanted.message_id.ack_set)
            elif wanted.HasField("message_publish_time"):
                mark = subscription.chain.from_base(await topic.index_at_time(wanted.message_publish_time))
            else:
                raise BadRequestError("SEEK needs a message id or a publish time", field="messageId")
            # The reset disconnects every consumer first. The answer comes last: on SUCCESS the client drops what it
            # received, and would count wrong permits for messages that arrive between the two.
            await subscription.reset(mark, bits)
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
        else:
            self.connection.send_success(wanted.request_id)

    async def _last_message(self, wanted: pb.CommandGetLastMessageId) -> None:
        try:
            _, subscription, topic = self._find(wanted.consumer_id)
            await self._check_right(topic.name, subscription.name, "get the last message id")
            position, entry = await topic.last_message(is_compacted=subscription.reads_compacted)
            answer = pb.CommandGetLastMessageIdResponse(request_id=wanted.request_id)
            _fill_message_id(answer.last_message_id, position, topic.name.partition)
            if entry is not None and entry.is_batch:
                answer.last_message_id.batch_index = entry.last_batch_index
                answer.last_message_id.batch_size = entry.messages
            before = subscription.chain.position_before(subscription.cursor.mark)
            _fill_message_id(answer.consumer_mark_delete_position, before, topic.name.partition)
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
            return
        self.connection.send(
            BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, get_last_message_id_response=answer)
        )

    def _stats(self, command: BaseCommand, section: memoryview | None) -> None:
        wanted = command.consumer_stats
        answer = pb.CommandConsumerStatsResponse(request_id=wanted.request_id)
        try:
            consumer, subscription, _ = self._find(wanted.consumer_id)
            rates = consumer.rates(time.monotonic())
            answer.msg_rate_out, answer.msg_throughput_out, answer.msg_rate_redeliver = rates
            answer.consumer_name = consumer.name
            answer.available_permits = max(consumer.state.permits, 0)
            answer.unacked_messages = consumer.state.pending_messages
            answer.blocked_consumer_on_unacked_msgs = consumer.state.is_blocked or subscription.dispatcher.is_blocked
            answer.address = self.peer
            answer.connected_since = iso_time(consumer.connected_ms)
            answer.type = subscription.kind.value
            answer.msg_backlog = subscription.backlog
        except HeliographError as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        self.connection.send(BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE, consumer_stats_response=answer))

    def _find(self, consumer_id: int) -> Subscribed:
        try:
            return self.consumers[consumer_id]
        except KeyError:
            raise NotFoundError(f"there is no consumer {consumer_id} on this connection") from None


def _new_message(partition: int, epoch: int | None) -> _Message:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    message = command.message
    if epoch is not None:
        message.consumer_epoch = epoch
    if partition >= 0:
        message.message_id.partition = partition
    return command, message, message.message_id


def _fill_message_id(data: pb.MessageIdData, position: Position, partition: int) -> None:
    data.ledger_id = to_unsigned(position.ledger_id)
    data.entry_id = to_unsigned(position.entry_id)
    if partition >= 0:
        data.partition = partition
