"""The largest and the worst input of each parser of what strangers send, and the types of the fields of requests."""

from __future__ import annotations

import typing
from collections.abc import Callable

import msgpack
import pytest

from heliograph.actors.wire.frame import FRAME_BYTES_MAX, BookieFrameDecoder, decode_batch, encode_head
from heliograph.actors.wire.grant import grant_from_text
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag
from heliograph.base.errors import BadRequestError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.shapes.bodies import VALUES_MAX
from heliograph.gateway.shapes.value_schema import value_schema
from heliograph.gateway.websocket.frames import FRAME_VALUES_MAX, consumer_command
from heliograph.metadata.backends.embedded.limits import OPERATIONS_MAX, RESET_WATCHES_MAX
from heliograph.metadata.backends.embedded.protocol import EmbeddedOp, encode_operation
from heliograph.metadata.errors import MetadataProtocolError
from heliograph.metadata.store import Create
from heliograph.operations.answer import CONTAINERS_MAX, unpacked_arguments
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import IDS_MESSAGES_MAX, encode_entry, parse, sequence_ids
from heliograph.protocol.frame import MESSAGE_BYTES_MAX, PulsarFrameDecoder, encode_command
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import TopicsPattern
from tests.unit.limits.measuring import Costs, check_cost
from tests.unit.metadata.test_embedded_service import World

pytestmark = pytest.mark.slow

MANY = "[" + "[]," * (VALUES_MAX // 4) + "1]"
READ = 256 << 10  # bytes that a socket gives at once
MESSAGE = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


def _many_fields() -> bytes:
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(MESSAGE)
    metadata.properties.extend([pb.KeyValue(key="", value="")] * 40_000)
    return encode_entry(metadata, b"")


def _frames() -> bytes:
    ping = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    return ping * (READ // len(ping))


def _batch() -> bytes:
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(MESSAGE)
    metadata.num_messages_in_batch = IDS_MESSAGES_MAX
    return encode_entry(metadata, b"\0" * (1 << 20))


WORST: dict[str, Callable[[], object]] = {
    "JSON of many values": lambda: parse_json(MANY, "it", "it", values_max=VALUES_MAX),
    "JSON of commas in texts": lambda: parse_json('["' + "," * 500_000 + '"]', "it", "it", values_max=20_000),
    "JSON of deep arrays": lambda: parse_json("[" * 5_000_000, "it", "it"),
    "JSON of a long number": lambda: parse_json("1" * 5_000_000, "it", "it"),
    "JSON of escapes": lambda: parse_json('["' + "\\ud83d\\ude00" * 40_000 + '"]', "it", "it"),
    "a frame of a WebSocket": lambda: consumer_command('{"a":[' + "{}," * (FRAME_VALUES_MAX // 3) + "1]}"),
    "a schema of REST": lambda: value_schema('{"type": "AVRO", "schema": "' + "W1tb" * 170_000 + '"}'),
    "a topic's name": lambda: TopicName.parse("ü" * 5_000_000),
    "a name of many parts": lambda: TopicName.parse("/" * 1_000),
    "a pattern": lambda: TopicsPattern("(" * 5_000_000),
    "a pattern of repetitions": lambda: TopicsPattern("(((a{100}){100}){100})"),
    "a message id": lambda: MessageId.from_bytes(b"\x2a\xff\xff\x03" + b"\x01" * 65_532),
    "an entry of many properties": lambda: parse(_many_fields(), check=True),
    "frames of Pulsar's protocol": lambda: PulsarFrameDecoder(MESSAGE_BYTES_MAX).feed(_frames()),
    "a batch that lies": lambda: sequence_ids(_batch(), 0),
    "a frame of a bookie": lambda: BookieFrameDecoder(FRAME_BYTES_MAX).feed(encode_head([[[]] * 1_000, 1], 0)),
    "entries of a bookie": lambda: decode_batch(b"\0\0\0\0" * 10_000),
    "a grant": lambda: grant_from_text("g" * 100_000),
    "arguments of lists": lambda: unpacked_arguments(msgpack.packb({"a": [[]] * 1_000_000}), "arguments"),
    "arguments of maps": lambda: unpacked_arguments(msgpack.packb({"a": [{}] * (CONTAINERS_MAX - 10)}), "arguments"),
}


@pytest.mark.parametrize("name", WORST)
def test_no_input_takes_long_or_much(name: str) -> None:
    check_cost(name, WORST[name])


@pytest.mark.parametrize("packed", [b"\x81\x90\x01", b"\x90", b"\xc1", b"\x81", b"\x91" * 5_000, b"\x81\xa1\xff\x01"])
def test_arguments_that_are_no_map_are_refused_by_name(packed: bytes) -> None:
    with pytest.raises(BadRequestError) as refused:
        unpacked_arguments(packed, "arguments")
    assert refused.value.field == "arguments"


def test_a_request_to_a_bookie_has_numbers_alone() -> None:
    """A field of another type needs a limit; a header has at most 4 KiB, and a body at most that of a frame."""
    fields = typing.get_type_hints(BookieRequest)
    assert set(fields.values()) == {int, BookieOp, Flag}


async def test_a_request_to_the_metadata_has_paths_numbers_and_lists_alone() -> None:
    """A path has the limit of a frame; lists of operations and of watches have limits of their own."""
    service = World().service
    assert {kind for types, _ in service._handlers.values() for kind in types} == {str, int, list}
    with_lists = {op for op, (types, _) in service._handlers.items() if list in types}
    assert with_lists == {EmbeddedOp.APPLY, EmbeddedOp.RESET_WATCHES}
    await service.committer.stop()


@pytest.mark.parametrize("count", [OPERATIONS_MAX, OPERATIONS_MAX + 1])
async def test_a_transaction_has_so_many_operations(count: int) -> None:
    operations = [encode_operation(Create(f"/n{number}")) for number in range(count)]
    costs = Costs()
    for _ in costs.attempts():
        world = World()
        client = world.client()
        await client.hello()
        with costs.measured():
            client.ask(EmbeddedOp.APPLY, msgpack.unpackb(msgpack.packb(operations)))
        names = [f"/{name}" for name in world.service.tree.children("/")]
        assert (f"/n{count - 1}" in names) == (count <= OPERATIONS_MAX)
        with pytest.raises(MetadataProtocolError):
            client.ask(EmbeddedOp.RESET_WATCHES, [[1, 1, "/a", 1, 1]] * (RESET_WATCHES_MAX + 1))
        await world.service.committer.stop()
    costs.check(f"a transaction of {count} operations")
