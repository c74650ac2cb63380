"""The commands that a consumer sends. Pure."""

from __future__ import annotations

from datetime import datetime

from heliograph.base.clock import MOMENT_MS_MAX, moment_ms
from heliograph.base.errors import InvalidMessageIdError
from heliograph.client.options import ConsumerOptions
from heliograph.client.types import SubscriptionType
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import TAKES_PARTS
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.schema import SchemaInfo, to_wire

_T = pb.BaseCommand
_TYPES: dict[SubscriptionType, pb.CommandSubscribe.SubType] = {
    "exclusive": pb.CommandSubscribe.EXCLUSIVE,
    "shared": pb.CommandSubscribe.SHARED,
    "failover": pb.CommandSubscribe.FAILOVER,
    "key_shared": pb.CommandSubscribe.KEY_SHARED,
}


def consumer_stats(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Return CONSUMER_STATS, the question about the statistics of a consumer."""
    command = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.CONSUMER_STATS, consumer_stats=command)


def subscribe(
    topic: str,
    options: ConsumerOptions,
    consumer_id: int,
    request_id: int,
    epoch: int,
    start: MessageId | None,
    inclusive: bool,
    schema: SchemaInfo | None,
) -> pb.BaseCommand:
    """Return SUBSCRIBE. A reader starts at ``start``: with the message there if ``inclusive``, otherwise after it."""
    earliest = options.initial_position == "earliest"
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=options.subscription,
        sub_type=_TYPES[options.type],
        consumer_id=consumer_id,
        request_id=request_id,
        priority_level=options.priority_level,
        durable=options.durable,
        read_compacted=options.read_compacted,
        initial_position=pb.CommandSubscribe.EARLIEST if earliest else pb.CommandSubscribe.LATEST,
        consumer_epoch=epoch,
    )
    if options.is_shared:
        command.metadata.add(key=TAKES_PARTS, value="true")
    if schema is not None:
        command.schema.CopyFrom(to_wire(schema))
    if options.name is not None:
        command.consumer_name = options.name
    if start is not None:
        if inclusive and start.batch_index < 0 and start.entry_id >= 0 and start != MessageId.LATEST:
            # The broker starts after the id that it is given.
            start = MessageId(start.ledger_id, start.entry_id - 1, start.partition)
        command.start_message_id.CopyFrom(start.to_data())
    return pb.BaseCommand(type=_T.SUBSCRIBE, subscribe=command)


def seek_target(target: object) -> MessageId | int:
    """Return a message id or a publish time in ms; raise InvalidMessageIdError if ``target`` names neither."""
    if isinstance(target, MessageId) or (type(target) is int and 0 <= target <= MOMENT_MS_MAX):
        return target
    if isinstance(target, datetime):
        return moment_ms(target, "target")
    if isinstance(target, str):
        return MessageId.parse(target)
    raise InvalidMessageIdError(
        f"{target!r:.80} is no message id and no time: a time is an aware datetime, or an int in milliseconds since "
        "the epoch",
        field="target",
        limit=f"0 to {MOMENT_MS_MAX} ms",
    )


def seek(consumer_id: int, request_id: int, target: MessageId | int) -> pb.BaseCommand:
    """Return SEEK to a message id or to a publish time in ms."""
    command = pb.CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if isinstance(target, MessageId):
        command.message_id.CopyFrom(target.to_data())
    else:
        command.message_publish_time = target
    return pb.BaseCommand(type=_T.SEEK, seek=command)


def get_last_message_id(consumer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.GET_LAST_MESSAGE_ID, get_last_message_id=command)


def unsubscribe(consumer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.UNSUBSCRIBE, unsubscribe=command)


def close(consumer_id: int, request_id: int) -> pb.BaseCommand:
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.CLOSE_CONSUMER, close_consumer=command)


def acknowledge_before(consumer_id: int, message_id: MessageId) -> pb.BaseCommand:
    """Return a cumulative ACK, which asks for no answer, of all entries before ``message_id``'s."""
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.CUMULATIVE)
    command.message_id.append(MessageId(message_id.ledger_id, message_id.entry_id - 1).to_data())
    return pb.BaseCommand(type=_T.ACK, ack=command)
