"""Clients of a broker without sockets, and the broker on ledgers and metadata in memory that they are connected to."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Self

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.fake_ledgers import FakeLedgers
from tests.unit.broker.world import turns

T = pb.BaseCommand
ENTRY = encode_entry_of("p", 0, 1, [b"x", b"y"], None)
WORK_TOPICS = 5


class FakeTransport(asyncio.Transport):
    """A socket that accepts every write and delivers nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = PulsarFrameDecoder(keeps_broker_metadata=True)
        self.answers: list[pb.BaseCommand] = []
        self.sections: list[bytes] = []  # of the messages among the answers
        self.is_gone = False
        self.is_read = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for command, section in self.decoder.feed(data):
            self.answers.append(command)
            if section is not None:
                self.sections.append(bytes(section))

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("peer", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        self.is_gone = True

    def abort(self) -> None:
        self.is_gone = True


class Client:
    """One connection to the broker, without a socket."""

    def __init__(self, broker: Broker, version: str = "test", **connect: Any) -> None:
        self.transport = FakeTransport()
        connection = broker._server._connected()
        assert isinstance(connection, PulsarConnection)
        self.connection = connection
        connection.connection_made(self.transport)
        wanted = {"client_version": version, "protocol_version": 20, **connect}
        self.say(T(type=T.CONNECT, connect=pb.CommandConnect(**wanted)))

    def say(self, command: pb.BaseCommand, section: bytes | None = None) -> None:
        if not self.transport.is_gone:
            frame = encode_command(command) if section is None else encode_payload_frame(command, section)
            self.connection.data_received(frame)

    def leave(self) -> None:
        self.connection.connection_lost(None)

    def answer(self, kind: int) -> bool:
        return any(command.type == kind for command in self.transport.answers)


class LoneBroker:
    """A broker on ledgers and metadata in memory, from ``async with``.

    Args:
        topics: those that it owns from the start; ``work`` uses others.
        options: of its configuration.
    """

    def __init__(self, *topics: str, **options: Any) -> None:
        self.ledgers = FakeLedgers()
        self.broker: Broker
        self._topics = (*topics, *(f"work-{number}" for number in range(WORK_TOPICS)))
        self._options = options
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        server = MemoryServer()
        await initialise(server.open_session())
        self.broker = Broker(
            BrokerConfig("lone", **{"probe_seconds": 0.0, **self._options}), server.open_session(), self.ledgers
        )
        await self.broker.start()
        for topic in self._topics:
            name = TopicName.parse(topic)
            if name.partition >= 0:
                await self.broker._catalog.create(TopicName.parse(name.partitioned_name), name.partition + 1)
            await self.broker._catalog.ensure(name)
            await self.broker.ownership.resolve(name)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.ledgers.held = False
        await self.broker.stop()

    async def work(self) -> None:
        """Check that the broker still serves another client."""
        client, topic = Client(self.broker), f"work-{next(self._numbers) % WORK_TOPICS}"
        producer = pb.CommandProducer(topic=topic, producer_id=1, request_id=1)
        client.say(T(type=T.PRODUCER, producer=producer))
        subscribe = pb.CommandSubscribe(
            topic=topic, subscription="work", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=1, request_id=2
        )
        client.say(T(type=T.SUBSCRIBE, subscribe=subscribe))
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS) and client.answer(T.SUCCESS))
        client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=10)))
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY)
        await turns(lambda: client.answer(T.SEND_RECEIPT) and client.answer(T.MESSAGE))
        client.leave()
