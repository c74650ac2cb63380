"""The commands that a consumer sends."""

from __future__ import annotations

from heliograph.options import ConsumerOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import MessageId
from heliograph.types import SubscriptionType

_T = pb.BaseCommand
_TYPES: dict[SubscriptionType, pb.CommandSubscribe.SubType] = {
    "exclusive": pb.CommandSubscribe.EXCLUSIVE,
    "shared": pb.CommandSubscribe.SHARED,
    "failover": pb.CommandSubscribe.FAILOVER,
    "key_shared": pb.CommandSubscribe.KEY_SHARED,
}


def subscribe(
    topic: str,
    options: ConsumerOptions,
    consumer_id: int,
    request_id: int,
    epoch: int,
    start: MessageId | None,
    inclusive: bool,
) -> pb.BaseCommand:
    """SUBSCRIBE; ``start`` is where a reader starts, ``inclusive`` whether with the message there."""
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
    if options.name is not None:
        command.consumer_name = options.name
    if start is not None:
        if inclusive and start.batch_index < 0 and start.entry_id >= 0 and start != MessageId.LATEST:
            # the broker starts behind the id it is given
            start = MessageId(start.ledger_id, start.entry_id - 1, start.partition)
        command.start_message_id.CopyFrom(start.to_data())
    return pb.BaseCommand(type=_T.SUBSCRIBE, subscribe=command)


def seek(consumer_id: int, request_id: int, target: MessageId | int) -> pb.BaseCommand:
    """SEEK to a message id or to a publish time in ms."""
    command = pb.CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if isinstance(target, MessageId):
        command.message_id.CopyFrom(target.to_data())
    else:
        command.message_publish_time = target
    return pb.BaseCommand(type=_T.SEEK, seek=command)


def get_last_message_id(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID."""
    command = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.GET_LAST_MESSAGE_ID, get_last_message_id=command)


def unsubscribe(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """UNSUBSCRIBE."""
    command = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.UNSUBSCRIBE, unsubscribe=command)


def close(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """CLOSE_CONSUMER."""
    command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.CLOSE_CONSUMER, close_consumer=command)


def acknowledge_before(consumer_id: int, place: MessageId) -> pb.BaseCommand:
    """A cumulative ACK, without an answer, of all entries before that of ``place``."""
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.CUMULATIVE)
    command.message_id.append(MessageId(place.ledger_id, place.entry_id - 1).to_data())
    return pb.BaseCommand(type=_T.ACK, ack=command)
