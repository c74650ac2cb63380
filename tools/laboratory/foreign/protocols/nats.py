"""NATS JetStream: a stream in files, publishing with acknowledgements, and a pull consumer."""

from __future__ import annotations

import json
from abc import abstractmethod

from typing_extensions import override

from tools.laboratory.foreign.protocols.connection import Answered, PeerConnection, Publisher, Reader

PULL_MESSAGES, PULLS = 500, 2  # of one pull, and pulls that are asked for at once
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"0"}\r\nSUB _IN.> 1\r\n'


class NatsConnection(PeerConnection):
    """The frames of NATS, with an inbox for what the server sends."""

    @override
    def greet(self) -> None:
        """The server speaks first."""

    @override
    def parse(self) -> None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            line = bytes(self._buffer[:end])
            if line.startswith(b"MSG "):
                size = int(line.rsplit(b" ", 1)[1])
                if len(self._buffer) < end + size + 4:
                    return
                body = bytes(self._buffer[end + 2 : end + 2 + size])
                del self._buffer[: end + size + 4]
                self.arrived(line.split()[1], body)
                continue
            del self._buffer[: end + 2]
            if line.startswith(b"INFO"):
                self.write(_CONNECT)
                self.connected()
            elif line == b"PING":
                self.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise RuntimeError(f"NATS answers {line!r}")

    @abstractmethod
    def connected(self) -> None:
        """Begin; the server has greeted."""

    @abstractmethod
    def arrived(self, subject: bytes, body: bytes) -> None:
        """Take a message."""


class NatsPublisher(NatsConnection, Publisher):
    """Publishes to a stream of JetStream, with an inbox for its acknowledgements."""

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        self.write(b"PUB %b _IN.ack %d\r\n%b\r\n" % (self.stream.encode(), len(payload), payload))

    @override
    def connected(self) -> None:
        wanted = {"name": self.stream, "subjects": [self.stream], "storage": "file", "num_replicas": 1}
        body = json.dumps({**wanted, "retention": "limits"}).encode()
        self.write(b"PUB $JS.API.STREAM.CREATE.%b _IN.create %d\r\n%b\r\n" % (self.stream.encode(), len(body), body))

    @override
    def arrived(self, subject: bytes, body: bytes) -> None:
        if b'"error"' in body:
            raise RuntimeError(f"JetStream answers {body!r}")
        if subject == b"_IN.create":
            self.ready.set_result(None)
        else:
            self.acknowledge()


class NatsReader(NatsConnection, Reader):
    """A pull consumer without acknowledgements; the next pull is asked for while one is delivered."""

    def __init__(self, stream: str, wanted: int) -> None:
        super().__init__(stream, wanted)
        self._pull = b""
        self._left = PULL_MESSAGES  # of the oldest pull

    @override
    def connected(self) -> None:
        self.begin()
        config = {"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
        body = json.dumps({"stream_name": self.stream, "config": config}).encode()
        head = b"PUB $JS.API.CONSUMER.CREATE.%b _IN.create %d\r\n" % (self.stream.encode(), len(body))
        self.write(head + body + b"\r\n")

    @override
    def arrived(self, subject: bytes, body: bytes) -> None:
        if subject == b"_IN.create":
            answer = json.loads(body)
            if "error" in answer:
                raise RuntimeError(f"JetStream answers {body!r}")
            asked = b'{"batch":%d}' % PULL_MESSAGES
            address = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{answer['name']}".encode()
            self._pull = b"PUB %b _IN.pull %d\r\n%b\r\n" % (address, len(asked), asked)
            for _ in range(PULLS):
                self.write(self._pull)
            return
        self._left -= 1
        if not self._left:
            self._left = PULL_MESSAGES
            self.write(self._pull)
        self.note(1, len(body))
