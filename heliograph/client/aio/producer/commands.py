"""The commands that a producer sends besides entries. Pure."""

from __future__ import annotations

from heliograph.client.options import ProducerOptions
from heliograph.client.types import AccessMode
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import STOPS_AT_REFUSAL
from heliograph.protocol.schema import SchemaInfo, to_wire

_T = pb.BaseCommand
_ACCESS_MODES: dict[AccessMode, pb.ProducerAccessMode] = {
    "shared": pb.ACCESS_SHARED,
    "exclusive": pb.ACCESS_EXCLUSIVE,
    "wait_for_exclusive": pb.ACCESS_WAIT_FOR_EXCLUSIVE,
    "exclusive_with_fencing": pb.ACCESS_EXCLUSIVE_WITH_FENCING,
}


def register(
    topic: str,
    options: ProducerOptions,
    producer_id: int,
    request_id: int,
    epoch: int,
    name: str,
    topic_epoch: int | None,
    schema: SchemaInfo | None,
) -> pb.BaseCommand:
    """Return PRODUCER. ``name`` is the one that the broker chose before, or the option, or empty."""
    command = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        epoch=epoch,
        user_provided_producer_name=options.name is not None,
        producer_access_mode=_ACCESS_MODES[options.access_mode],
    )
    if name:
        command.producer_name = name
    if schema is not None:
        command.schema.CopyFrom(to_wire(schema))
    if options.initial_subscription is not None:
        command.initial_subscription_name = options.initial_subscription
    if options.stop_at_failure:
        command.metadata.add(key=STOPS_AT_REFUSAL, value="true")
    if topic_epoch is not None:
        command.topic_epoch = topic_epoch
    return pb.BaseCommand(type=_T.PRODUCER, producer=command)


def close(producer_id: int, request_id: int) -> pb.BaseCommand:
    """Return CLOSE_PRODUCER."""
    command = pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return pb.BaseCommand(type=_T.CLOSE_PRODUCER, close_producer=command)
