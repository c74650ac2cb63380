"""Commands in any order and with any fields: the connection may end, the broker and other connections go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_payload_frame
from tests.examples import examples
from tests.unit.broker.clients import ENTRY, Client, LoneBroker, T
from tests.unit.broker.world import turns

pytestmark = pytest.mark.slow

TOPICS = ("a", "b-partition-1", "non-persistent://public/default/v", "x://y", "nobody/nothing/z", "")
TEXTS = (*TOPICS, "sub", "pulsar.dedup", "__compaction", "public/default", "[", ".*", "p")
NUMBERS = (0, 1, 2, 3, 41, (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1)
SECTIONS = (None, ENTRY, ENTRY[:-1] + b"?", ENTRY[:5], b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x01", b"x" * 100)
TURNS_BETWEEN = 4  # turns of the loop: some commands arrive before the previous one is done, some after
TURNS = 60  # turns of the loop, enough for the work of a command

PRELUDE: tuple[tuple[pb.BaseCommand, bytes | None], ...] = (
    (T(type=T.PRODUCER, producer=pb.CommandProducer(topic="a", producer_id=1, request_id=1)), None),
    (
        T(
            type=T.SUBSCRIBE,
            subscribe=pb.CommandSubscribe(topic="a", subscription="sub", sub_type=1, consumer_id=1, request_id=2),  # type: ignore[arg-type]
        ),
        None,
    ),
    (T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=5)), None),
    (T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY),
)

_kinds = [value.number for value in T.Type.DESCRIPTOR.values]
_busy = [T.PRODUCER, T.SEND, T.CLOSE_PRODUCER, T.SUBSCRIBE, T.FLOW, T.ACK, T.REDELIVER_UNACK, T.SEEK, T.UNSUBSCRIBE,
         T.CLOSE_CONSUMER, T.LOOKUP, T.PARTITIONED_METADATA, T.GET_TOPICS_OF_NAMESPACE, T.GET_LAST_MESSAGE_ID,
         T.CONSUMER_STATS, T.GET_SCHEMA, T.GET_OR_CREATE_SCHEMA, T.NEW_TXN,
         T.WATCH_TOPIC_LIST, T.WATCH_TOPIC_LIST_CLOSE]  # fmt: skip


async def suffer(lone: LoneBroker, script: list[tuple[pb.BaseCommand, bytes | None]]) -> None:
    client = Client(lone.broker)
    for command, section in script:
        client.say(command, section)
        for _ in range(TURNS_BETWEEN):
            await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    client.leave()
    await turns(lambda: not client.connection._tasks)
    await turns(lambda: lone.broker._publish_budget.bytes == 0)
    for topic in lone.broker.topics.loaded:
        assert not topic.producers, "a client's producers end with its connection"
        assert not topic.has_consumers, "so do its consumers"
        assert not topic.admission.producers.access.waiting
    await lone.work()


@pytest.fixture(scope="module")
async def fuzzed() -> AsyncIterator[LoneBroker]:
    async with LoneBroker(*TOPICS[:3]) as running:
        yield running


def _value(draw: st.DrawFn, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _message(draw, field)
    if field.name in ("producer_id", "consumer_id"):
        return draw(st.integers(0, 1))
    if field.name == "topic":
        return draw(st.sampled_from(TOPICS))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return draw(st.booleans())
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw(st.sampled_from(TEXTS))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.binary(max_size=4))
    limit = {
        FieldDescriptor.TYPE_INT32: 1 << 31,
        FieldDescriptor.TYPE_UINT32: 1 << 32,
        FieldDescriptor.TYPE_INT64: 1 << 63,
    }
    return draw(st.sampled_from([number for number in NUMBERS if number < limit.get(field.type, 1 << 64)]))


def _message(draw: st.DrawFn, field: Any) -> Any:
    message = field.message_type._concrete_class()
    for inner in field.message_type.fields:
        if inner.is_required or draw(st.booleans()):
            if inner.is_repeated:
                values = [_value(draw, inner) for _ in range(draw(st.integers(0, 2)))]
                getattr(message, inner.name).extend(values)
            elif inner.type == FieldDescriptor.TYPE_MESSAGE:
                getattr(message, inner.name).CopyFrom(_value(draw, inner))
            else:
                setattr(message, inner.name, _value(draw, inner))
    return message


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[pb.BaseCommand, bytes | None]]:
    script = list(PRELUDE[: draw(st.integers(0, len(PRELUDE)))])
    for kind in draw(st.lists(st.sampled_from(_busy * 4 + _kinds), min_size=1, max_size=12)):
        command = T(type=kind)  # type: ignore[arg-type]
        field = T.DESCRIPTOR.fields_by_number[kind]
        getattr(command, field.name).CopyFrom(_message(draw, field))
        script.append((command, draw(st.sampled_from(SECTIONS)) if kind == T.SEND else None))
    return script


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts())
async def test_no_sequence_of_commands_harms_the_broker(
    fuzzed: LoneBroker, caplog: pytest.LogCaptureFixture, script: list[tuple[pb.BaseCommand, bytes | None]]
) -> None:
    caplog.clear()
    with caplog.at_level(logging.ERROR, "heliograph.actors.broker"):
        await suffer(fuzzed, script)
    assert not caplog.records, caplog.text


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(junk=st.binary(max_size=200), place=st.integers(0, 3))
async def test_no_bytes_harm_the_broker(
    fuzzed: LoneBroker, caplog: pytest.LogCaptureFixture, junk: bytes, place: int
) -> None:
    caplog.clear()
    frame = bytearray(encode_payload_frame(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY))
    stream = (junk, bytes(frame) + junk, bytes(frame[: len(junk)]), bytes(frame[: len(junk)]) + junk)[place]
    with caplog.at_level(logging.ERROR, "heliograph.actors.broker"):
        client = Client(fuzzed.broker)
        if not client.transport.is_gone:
            client.connection.data_received(stream)
        await asyncio.sleep(0)
        client.leave()
        await fuzzed.work()
    assert not caplog.records, caplog.text
