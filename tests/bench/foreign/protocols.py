"""The least client of each server: frames out, acknowledgements in, many in flight on one connection."""

from __future__ import annotations

import asyncio
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import crc32c
from typing_extensions import override

Answered = Callable[[int], None]
STREAM = "bench"
ANSWER_SECONDS_MAX = 60.0
KAFKA_NOT_READY = (3, 5, 6)  # the topic is being made, and has no leader yet


class PeerConnection(asyncio.Protocol, ABC):
    """One connection. ``send`` publishes; the answers come in the order of the requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Answered, int]] = []
        self._next = 0
        self._out: list[bytes] = []
        self._buffer = bytearray()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.WriteTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.greet()

    @override
    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self.parse()
        except (RuntimeError, ValueError, struct.error) as error:
            self.fail(error)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or ConnectionError("the server closed the connection"))

    def fail(self, error: BaseException) -> None:
        """End what waits for this connection."""
        for waiting in (self.ready, self.failed):
            if not waiting.done():
                waiting.set_exception(error)

    def write(self, frame: bytes) -> None:
        """Send a frame; the frames of one iteration of the loop are sent together."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def expect(self, answered: Answered, number: int) -> None:
        """Note that one more answer is to come."""
        self._waiting.append((answered, number))

    def acknowledge(self) -> None:
        """Note the answer to the oldest request that has none."""
        answered, number = self._waiting[self._next]
        self._next += 1
        if self._next == 10_000:
            del self._waiting[: self._next]
            self._next = 0
        answered(number)

    def _flush(self) -> None:
        assert self.transport is not None, "it is connected before it sends"
        out, self._out = self._out, []
        self.transport.writelines(out)

    @abstractmethod
    def greet(self) -> None:
        """Begin; ``ready`` is to be set when requests may come."""

    @abstractmethod
    def parse(self) -> None:
        """Take whole answers from the buffer."""

    @abstractmethod
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        """Publish a message."""


class RedisConnection(PeerConnection):
    """Adds to a stream."""

    @override
    def greet(self) -> None:
        self.ready.set_result(None)

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        head = b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nv\r\n"
        self.write(b"%b$%d\r\n%b\r\n" % (head, len(payload), payload))

    @override
    def parse(self) -> None:
        *lines, rest = bytes(self._buffer).split(b"\r\n")
        if any(line.startswith(b"-") for line in lines):
            raise RuntimeError(f"Redis answers {lines[0]!r}")
        whole = len(lines) // 2  # the length of an id, and the id
        self._buffer = bytearray(b"\r\n".join([*lines[2 * whole :], rest]))
        for _ in range(whole):
            self.acknowledge()


class NatsConnection(PeerConnection):
    """Publishes to a stream of JetStream, with an inbox for its acknowledgements."""

    @override
    def greet(self) -> None:
        """The server speaks first."""

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        self.write(b"PUB %b _IN.ack %d\r\n%b\r\n" % (STREAM.encode(), len(payload), payload))

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
                self._answer(line.split()[1], body)
                continue
            del self._buffer[: end + 2]
            if line.startswith(b"INFO"):
                self._create()
            elif line == b"PING":
                self.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise RuntimeError(f"NATS answers {line!r}")

    def _create(self) -> None:
        wanted = {"name": STREAM, "subjects": [STREAM], "storage": "file", "num_replicas": 1, "retention": "limits"}
        body = json.dumps(wanted).encode()
        self.write(b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"0"}\r\nSUB _IN.> 1\r\n')
        self.write(b"PUB $JS.API.STREAM.CREATE.%b _IN.create %d\r\n%b\r\n" % (STREAM.encode(), len(body), body))

    def _answer(self, subject: bytes, body: bytes) -> None:
        if b'"error"' in body:
            raise RuntimeError(f"JetStream answers {body!r}")
        if subject == b"_IN.create":
            self.ready.set_result(None)
        else:
            self.acknowledge()


class KafkaConnection(PeerConnection):
    """Produces to one partition, with acknowledgements of all replicas, of which there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: dict[tuple[int, int], bytes] = {}
        self.records = 1  # in a request

    @override
    def greet(self) -> None:
        self._loop.create_task(self._make_topic())

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        key = (len(payload), self.records)
        if key not in self._frames:
            self._frames[key] = _produce(payload, self.records)
        self.write(self._frames[key])

    @override
    def parse(self) -> None:
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (size := int.from_bytes(self._buffer[:4])):
            answer = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            if answer[:4] == b"META":
                self.send(b"x", lambda _: self.ready.set_result(None), 0)
                continue
            at = 4 + 4 + 2 + len(STREAM) + 4 + 4  # correlation, topics, name, partitions, partition
            (code,) = struct.unpack_from(">h", answer, at)
            if code in KAFKA_NOT_READY and not self.ready.done():
                self._waiting.pop()
                self._loop.call_later(0.2, self._ask)
            elif code:
                raise RuntimeError(f"Kafka answers with error {code}")
            else:
                self.acknowledge()

    async def _make_topic(self) -> None:
        self._ask()

    def _ask(self) -> None:
        self.write(_framed(3, 1, b"META", struct.pack(">i", 1) + _string(STREAM)))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _framed(key: int, version: int, correlation: bytes, body: bytes) -> bytes:
    content = struct.pack(">hh", key, version) + correlation + _string("bench") + body
    return struct.pack(">i", len(content)) + content


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _produce(payload: bytes, records: int) -> bytes:
    """Return a produce request of version 3 with one batch of version 2."""
    rows = []
    for number in range(records):
        row = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(payload)) + payload + _varint(0)
        rows.append(_varint(len(row)) + row)
    checked = struct.pack(">hiqqqhii", 0, records - 1, 0, 0, -1, -1, -1, records) + b"".join(rows)
    batch = struct.pack(">ibI", -1, 2, crc32c.crc32c(checked)) + checked
    batch = struct.pack(">qi", 0, len(batch)) + batch
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + _string(STREAM)
    body += struct.pack(">ii", 1, 0) + struct.pack(">i", len(batch)) + batch
    return _framed(0, 3, b"SENT", body)
