"""A client of Pulsar's protocol that sends what a test tells it to, byte by byte if need be."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame

ANSWER_SECONDS_MAX = 60.0
_T = pb.BaseCommand


class RawPeer:
    """One connection, blocking. The handshake is done unless ``version`` is 0."""

    def __init__(self, service_url: str, version: int = 19, client: str = "raw") -> None:
        host, _, port = service_url.removeprefix("pulsar://").split(",")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS_MAX)
        self._decoder = PulsarFrameDecoder(6 << 20)
        self._owned: set[str] = set()
        self._waiting: deque[tuple[pb.BaseCommand, bytes | None]] = deque()
        if version:
            self.send(connect=pb.CommandConnect(client_version=client, protocol_version=version))
            self.connected = self.answer(_T.CONNECTED).connected

    def send(self, **command: Any) -> None:
        """One command, named by its field of BaseCommand."""
        (name,) = command
        self.socket.sendall(encode_command(_T(type=name.upper(), **command)))

    def publish(self, producer_id: int, sequence_id: int, *payloads: bytes) -> None:
        """One entry."""
        entry = encode_entry_of("raw", sequence_id, 1, payloads)
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=len(payloads))
        self.socket.sendall(encode_payload_frame(_T(type=_T.SEND, send=send), entry))

    def next(self) -> tuple[pb.BaseCommand, bytes | None]:
        """The next command with its payload section. Raises ConnectionError at the end."""
        while not self._waiting:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker hung up")
            for command, section in self._decoder.feed(data):
                self._waiting.append((command, None if section is None else bytes(section)))
        return self._waiting.popleft()

    def answer(self, *kinds: int) -> pb.BaseCommand:
        """The next command, which must be of one of these kinds."""
        command, _ = self.next()
        assert command.type in kinds, f"{command} where {[_T.Type.Name(kind) for kind in kinds]} was due"
        return command

    def look_up(self, topic: str) -> None:
        """Have this broker, the only one, own the topic."""
        if topic not in self._owned:
            self.send(lookup=pb.CommandLookup(topic=topic, request_id=99))
            self.answer(_T.LOOKUP_RESPONSE)
            self._owned.add(topic)

    def subscribe(self, topic: str, consumer_id: int = 1, request_id: int = 1, **options: Any) -> pb.BaseCommand:
        """Subscribe, and the answer: SUCCESS or ERROR."""
        self.look_up(topic)
        wanted = {"subscription": "s", "sub_type": pb.CommandSubscribe.SHARED, **options}
        self.send(subscribe=pb.CommandSubscribe(topic=topic, consumer_id=consumer_id, request_id=request_id, **wanted))
        return self.answer(_T.SUCCESS, _T.ERROR)

    def producer(self, topic: str, producer_id: int = 1, **options: Any) -> pb.BaseCommand:
        """Become a producer, and the answer."""
        self.look_up(topic)
        wanted = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=1, **options)
        self.send(producer=wanted)
        return self.answer(_T.PRODUCER_SUCCESS, _T.ERROR)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        """Ask for messages."""
        self.send(flow=pb.CommandFlow(consumer_id=consumer_id, message_permits=permits))

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
