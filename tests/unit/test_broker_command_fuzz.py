"""What a client may send in any order and with any fields: its connection may die, the broker and others go on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.broker.broker import Broker
from actors.broker.config import BrokerConfig
from actors.broker.connection import Connection
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import FrameDecoder, encode_command, encode_payload_frame
from metadata.cluster_init import initialise
from metadata.memory import MemoryServer
from tests.unit.broker_world import turns
from tests.unit.fake_ledgers import FakeLedgers

T = pb.BaseCommand
TOPICS = ("a", "b-partition-1", "non-persistent://public/default/v", "x://y", "nobody/nothing/z", "")
TEXTS = (*TOPICS, "sub", "pulsar.dedup", "public/default", "[", ".*", "p")
NUMBERS = (0, 1, 2, 3, 41, (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1)
ENTRY = encode_entry_of("p", 0, 1, [b"x", b"y"], None)
SECTIONS = (None, ENTRY, ENTRY[:-1] + b"?", ENTRY[:5], b"", b"\x0e\x01", b"\x0e\x02\x00\x00\x00\x01", b"x" * 100)
TURNS = 60  # of the loop, enough for what a command sets going

_kinds = [value.number for value in T.Type.DESCRIPTOR.values]


class FakeTransport(asyncio.Transport):
    """A socket that takes everything and never gives anything by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = FrameDecoder()
        self.answers: list[pb.BaseCommand] = []
        self.is_gone = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers += [command for command, _ in self.decoder.feed(data)]

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("peer", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        self.is_gone = True

    def abort(self) -> None:
        self.is_gone = True


class Client:
    """One connection to the broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self.transport = FakeTransport()
        connection = broker._server._connected()
        assert isinstance(connection, Connection)
        self.connection = connection
        connection.connection_made(self.transport)
        self.say(T(type=T.CONNECT, connect=pb.CommandConnect(client_version="fuzz", protocol_version=20)))

    def say(self, command: pb.BaseCommand, section: bytes | None = None) -> None:
        if not self.transport.is_gone:
            frame = encode_command(command) if section is None else encode_payload_frame(command, section)
            self.connection.data_received(frame)

    def leave(self) -> None:
        self.connection.connection_lost(None)

    def answer(self, kind: int) -> bool:
        return any(command.type == kind for command in self.transport.answers)


class Fuzzed:
    """A broker on ledgers and metadata in memory, and the loop that it runs on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.numbers = itertools.count()
        self.broker = self.loop.run_until_complete(self._start())

    async def _start(self) -> Broker:
        server = MemoryServer()
        await initialise(server.open_session())
        broker = Broker(BrokerConfig("fuzzed"), server.open_session(), FakeLedgers())
        await broker.start()
        return broker

    def stop(self) -> None:
        self.loop.run_until_complete(self.broker.stop())
        self.loop.close()

    async def suffer(self, script: list[tuple[pb.BaseCommand, bytes | None]]) -> None:
        client = Client(self.broker)
        for command, section in script:
            client.say(command, section)
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        client.leave()
        await turns(lambda: not client.connection._tasks)
        await turns(lambda: self.broker._publish_budget.bytes == 0)
        for topic in self.broker.topics.loaded:
            assert not topic.producers, "a client's producers end with its connection"
            assert not topic.has_consumers, "so do its consumers"
            assert not topic.write_side.members.access.waiting
        await self.work()

    async def work(self) -> None:
        """Another client is served as ever."""
        client, topic = Client(self.broker), f"work-{next(self.numbers) % 5}"
        producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
        client.say(T(type=T.PRODUCER, producer=producer))
        subscribe = pb.CommandSubscribe(topic=topic, subscription="work", sub_type=0, consumer_id=1, request_id=2)
        client.say(T(type=T.SUBSCRIBE, subscribe=subscribe))
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS) and client.answer(T.SUCCESS))
        client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=10)))
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY)
        await turns(lambda: client.answer(T.SEND_RECEIPT) and client.answer(T.MESSAGE))
        client.leave()


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    running = Fuzzed()
    yield running
    running.stop()


def _value(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _message(draw, field)
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


def _message(draw: st.DrawFn, field: FieldDescriptor) -> Any:
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
    script = []
    for kind in draw(st.lists(st.sampled_from(_kinds), min_size=1, max_size=12)):
        command = T(type=kind)  # type: ignore[arg-type]
        field = T.DESCRIPTOR.fields_by_number[kind]
        getattr(command, field.name).CopyFrom(_message(draw, field))
        script.append((command, draw(st.sampled_from(SECTIONS)) if kind == T.SEND else None))
    return script


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=scripts())
def test_no_sequence_of_commands_harms_the_broker(
    fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture, script: list[tuple[pb.BaseCommand, bytes | None]]
) -> None:
    caplog.clear()
    with caplog.at_level(logging.ERROR, "actors.broker"):
        fuzzed.loop.run_until_complete(fuzzed.suffer(script))
    assert not caplog.records, caplog.text


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(junk=st.binary(max_size=200), place=st.integers(0, 3))
def test_no_bytes_harm_the_broker(fuzzed: Fuzzed, caplog: pytest.LogCaptureFixture, junk: bytes, place: int) -> None:
    caplog.clear()
    frame = bytearray(encode_payload_frame(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY))
    stream = (junk, bytes(frame) + junk, bytes(frame[: len(junk)]), bytes(frame[: len(junk)]) + junk)[place]

    async def scenario() -> None:
        client = Client(fuzzed.broker)
        if not client.transport.is_gone:
            client.connection.data_received(stream)
        await asyncio.sleep(0)
        client.leave()
        await fuzzed.work()

    with caplog.at_level(logging.ERROR, "actors.broker"):
        fuzzed.loop.run_until_complete(scenario())
    assert not caplog.records, caplog.text
