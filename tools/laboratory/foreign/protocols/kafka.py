"""Kafka: one partition, produce requests of version 3 and fetch requests of version 4, batches of version 2."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import crc32c
from typing_extensions import override

from tools.laboratory.foreign.protocols.connection import Answered, Publisher, Reader

NOT_READY = (3, 5, 6)  # the topic is being made, and has no leader yet
FETCH_BYTES = 1 << 20  # of one answer, as Java's max.partition.fetch.bytes
WAIT_MS = 500
BATCH_HEAD_BYTES = 61


class KafkaPublisher(Publisher):
    """Produces to one partition, with acknowledgements of all replicas, of which there is one."""

    has_batches = True

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._frames: dict[tuple[int, int], bytes] = {}

    @override
    def greet(self) -> None:
        self._ask()

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        key = (len(payload), self.records)
        if key not in self._frames:
            self._frames[key] = produce(self.stream, payload, self.records)
        self.write(self._frames[key])

    @override
    def parse(self) -> None:
        while (answer := _next_answer(self._buffer)) is not None:
            if answer[:4] == b"META":
                self.send(b"x", lambda _: self.ready.set_result(None), 0)
                continue
            at = 4 + 4 + 2 + len(self.stream) + 4 + 4  # correlation, topics, name, partitions, partition
            (code,) = struct.unpack_from(">h", answer, at)
            if code in NOT_READY and not self.ready.done():
                self._waiting.pop()
                self._loop.call_later(0.2, self._ask)
            elif code:
                raise RuntimeError(f"Kafka answers with error {code}")
            else:
                self.acknowledge()

    def _ask(self) -> None:
        self.write(_framed(3, 1, b"META", struct.pack(">i", 1) + _string(self.stream)))


class KafkaReader(Reader):
    """Fetches one partition from its first offset. Batches are checked, and their records are counted by their heads.

    The next fetch is sent as soon as the heads of an answer tell its offset, before the batches are checked, as the
    Java client does: the server works while this client does.
    """

    @override
    def greet(self) -> None:
        self.begin()
        self.write(fetch(self.stream, 0))

    @override
    def parse(self) -> None:
        while (answer := _next_answer(self._buffer)) is not None:
            found = list(batches(fetched(memoryview(answer), self.stream)))
            if not found:
                raise RuntimeError(f"the partition ends after {self.run.messages} messages")
            if not self.ended.done():
                self.write(fetch(self.stream, found[-1][1]))
            for batch, _ in found:
                self.note(count(batch), len(batch))


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


def produce(stream: str, payload: bytes, records: int) -> bytes:
    """Return a produce request of version 3 with one batch of version 2, of equal records."""
    batch = record_batch(payload, records)
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + _string(stream)
    body += struct.pack(">ii", 1, 0) + struct.pack(">i", len(batch)) + batch
    return _framed(0, 3, b"SENT", body)


def record_batch(payload: bytes, records: int, base_offset: int = 0) -> bytes:
    """Return a batch of version 2 of equal records."""
    rows = []
    for number in range(records):
        row = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(payload)) + payload + _varint(0)
        rows.append(_varint(len(row)) + row)
    checked = struct.pack(">hiqqqhii", 0, records - 1, 0, 0, -1, -1, -1, records) + b"".join(rows)
    batch = struct.pack(">ibI", -1, 2, crc32c.crc32c(checked)) + checked
    return struct.pack(">qi", base_offset, len(batch)) + batch


def fetch(stream: str, offset: int) -> bytes:
    """Return a fetch request of version 4 for one partition, from an offset on."""
    body = struct.pack(">iiiib", -1, WAIT_MS, 1, FETCH_BYTES, 0) + struct.pack(">i", 1) + _string(stream)
    body += struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES)
    return _framed(1, 4, b"READ", body)


def fetched(answer: memoryview, stream: str) -> memoryview:
    """Return the batches of an answer to ``fetch``, the last of which may be cut off.

    Raises:
        RuntimeError: the answer is an error.
    """
    at = 4 + 4 + 4 + 2 + len(stream.encode()) + 4 + 4  # correlation, throttle, topics, name, partitions, partition
    code, _, _, aborted = struct.unpack_from(">hqqi", answer, at)
    if code:
        raise RuntimeError(f"Kafka answers with error {code}")
    at += 2 + 8 + 8 + 4 + max(aborted, 0) * 16
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(size, 0)]


def batches(records: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Yield the whole batches, each with the offset after it."""
    at = 0
    while len(records) - at >= BATCH_HEAD_BYTES:
        base, length = struct.unpack_from(">qi", records, at)
        end = at + 12 + length
        if end > len(records):
            return
        (last,) = struct.unpack_from(">i", records, at + 23)
        yield records[at:end], base + last + 1
        at = end


def count(batch: memoryview) -> int:
    """Return the number of records of a batch.

    Raises:
        RuntimeError: the batch is of another version, or does not match its checksum.
    """
    magic, checksum = struct.unpack_from(">bI", batch, 16)
    if magic != 2 or crc32c.crc32c(batch[21:]) != checksum:
        raise RuntimeError("a batch is damaged, or of another version")
    (records,) = struct.unpack_from(">i", batch, 57)
    return int(records)


def _next_answer(buffer: bytearray) -> bytes | None:
    """Return the next answer in the buffer and remove it there; None while it is not whole."""
    if len(buffer) < 4 or len(buffer) < 4 + (size := int.from_bytes(buffer[:4])):
        return None
    answer = bytes(memoryview(buffer)[4 : 4 + size])
    del buffer[: 4 + size]
    return answer
