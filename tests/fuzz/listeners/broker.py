"""The broker's listener for Pulsar's binary protocol, open and with authentication."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from random import Random

from typing_extensions import override

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.auth.config import AuthConfig
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command
from tests.fuzz import values
from tests.fuzz.conversation import Conversation, Message, disturbed
from tests.fuzz.encodings import protobuf, pulsar
from tests.fuzz.encodings.pulsar_peer import PulsarPeer
from tests.fuzz.listener import BrokenPromiseError, Listener
from tests.unit.auth.keys import SECRET, token
from tests.unit.broker.fake_ledgers import FakeLedgers

TOPIC = "persistent://public/default/confirmed"  # of the well-behaved client; no other client says its name
CONNECT = pb.CommandConnect(client_version="fuzz", protocol_version=20)
_T = pb.BaseCommand


class BrokerListener(Listener):
    """A broker on ledgers and metadata in memory."""

    name = "broker"
    auth = AuthConfig()
    connect = CONNECT

    @override
    async def start(self) -> None:
        server = MemoryServer()
        await initialise(server.open_session())
        self.ledgers = FakeLedgers()
        config = BrokerConfig("fuzzed", auth=self.auth, housekeeping_seconds=0.2, probe_seconds=0.0)
        self.broker = Broker(config, server.open_session(), self.ledgers)
        await self.broker.start()
        self.address = ("127.0.0.1", int(self.broker.service_url.rpartition(":")[2]))
        self._peer = PulsarPeer(TOPIC)
        await self._peer.start(*self.address, self.connect)

    @override
    async def stop(self) -> None:
        self._peer.close()
        await self.broker.stop()

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        clients = random.choice((1, 1, 2, 3))
        return disturbed(random, [pulsar.conversation(random, CONNECT) for _ in range(clients)])

    @override
    def examine(self, heard: bytes) -> None:
        for command, _ in PulsarFrameDecoder(keeps_broker_metadata=True).feed(heard):
            if command.type == _T.ERROR and command.error.error == pb.UNKNOWN_ERROR:
                raise BrokenPromiseError(f"an error without a type: {command.error.message:.500}")

    @override
    async def work(self) -> None:
        await self._peer.work()

    @override
    async def audit(self) -> None:
        await self._peer.audit()

    @override
    def held(self) -> Counter[str]:
        found = Counter(connections=self.broker._server.connections, publish_bytes=self.broker._publish_budget.bytes)
        found["requests"] = sum(len(each._tasks) for each in self.broker._server.open_connections)
        for topic in self.broker.topics.loaded:
            found["producers"] += len(topic.producers)
            found["waiting producers"] += len(topic.admission.producers.access.waiting)
            found["topics with consumers"] += topic.has_consumers
        return found

    @override
    def reply(self, name: str, form: bytes, heard: Sequence[bytes]) -> bytes:
        """Acknowledge a message that the client received."""
        messages = [
            command.message.message_id
            for command, _ in PulsarFrameDecoder(keeps_broker_metadata=True).feed(heard[0])
            if command.type == _T.MESSAGE
        ]
        if not messages:
            return b""
        random = Random(form)
        ack = pb.CommandAck(
            consumer_id=1,
            ack_type=random.choice((pb.CommandAck.INDIVIDUAL, pb.CommandAck.CUMULATIVE)),
            message_id=random.choices(messages, k=random.choice((1, 1, 3))),
        )
        if random.random() < 0.5:
            ack.request_id = random.choice(values.UNSIGNED)
        if random.random() < 0.3:
            ack.message_id[0].ack_set.extend(random.choices([-1, 0, 1, (1 << 63) - 1, -(1 << 63)], k=2))
        return encode_command(_T(type=_T.ACK, ack=ack))


class BrokerDoorListener(BrokerListener):
    """A broker that asks for credentials, and clients that have none that are good."""

    name = "broker-door"
    auth = AuthConfig(
        enabled=True,
        token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
        superuser_roles=("root",),
        proxy_roles=("gate",),
    )

    @override
    async def start(self) -> None:
        self.connect = pb.CommandConnect(
            client_version="works", protocol_version=20, auth_method_name="token", auth_data=token("root")
        )
        await super().start()

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        clients = random.choice((1, 1, 2))
        return disturbed(random, [cls._stranger(random) for _ in range(clients)])

    @classmethod
    def _stranger(cls, random: Random) -> list[Message]:
        topics = (*pulsar.TOPICS, TOPIC)
        connect = pb.CommandConnect(
            client_version="fuzz",
            protocol_version=20,
            auth_method_name=random.choice(("token", "basic", "none", "tls", "")),
            auth_data=random.choice((b"", values.octets(random)[:5_000], *_forged())),
        )
        if random.random() < 0.3:
            connect.original_principal = "root"
        messages = pulsar.conversation(random, connect, topics)
        at = random.randrange(len(messages) + 1)
        tree = protobuf.of_message(_T(type=_T.CONNECT, connect=connect))
        messages.insert(at, pulsar.frame(random, protobuf.mutated(random, tree)))
        return messages

    @override
    def examine(self, heard: bytes) -> None:
        for command, _ in PulsarFrameDecoder(keeps_broker_metadata=True).feed(heard):
            if command.type != _T.ERROR or command.error.error != pb.AUTHENTICATION_ERROR:
                raise BrokenPromiseError(f"a stranger was served: {command!s:.500}")

    @override
    def held(self) -> Counter[str]:
        found = super().held()
        found["topics"] = sum(1 for _ in self.broker.topics.loaded)
        return found


def _forged() -> tuple[bytes, ...]:
    """Return tokens that are not good: of another key, without a signature, ended."""
    head, claims = b"eyJhbGciOiJub25lIn0", b"eyJzdWIiOiJyb290In0"
    return (
        b"x" * 32,
        b".".join((head, claims, b"")),
        b".".join((head, claims, b"AAAA")),
        b"a.b.c",
        b"..",
        b"." * 3_000,
    )
