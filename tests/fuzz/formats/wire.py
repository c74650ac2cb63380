"""Formats of entries and of connections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from typing_extensions import override

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.format import (
    RECORD_HEADER_BYTES,
    TAG_BYTES,
    Kind,
    batch_bytes,
    encode_batch,
    encode_file_header,
)
from heliograph.actors.bookie.journal.scan import scan_bytes
from heliograph.actors.errors import EntryDamagedError, FrameError, JournalCorruptError
from heliograph.actors.ledger.driver import answers
from heliograph.actors.ledger.effects import Reply
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, decode_entry, encode_entry
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request, encode_request
from heliograph.actors.wire.frame import encode_batch as encode_entries
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.base.errors import ChecksumError, ProtocolError
from heliograph.cluster.keeping.channel import CALL, PartChannel
from heliograph.metadata.backends.embedded.protocol import EmbeddedFrameDecoder, EmbeddedOp, encode_frame
from heliograph.metadata.endpoint.wire import jute, replies, requests
from heliograph.metadata.endpoint.wire.codes import OpCode
from heliograph.metadata.endpoint.wire.frames import FrameCutter
from heliograph.metadata.errors import MetadataProtocolError
from heliograph.protocol import entry as codec
from heliograph.protocol import frame
from heliograph.protocol import pulsar_pb2 as pb
from tests.fuzz.formats.format import Form, Format

LEDGER = 7
FILE_BYTES = 48 << 10


def ledger_image(payloads: Sequence[bytes]) -> bytes:
    """Return what a bookie answers to a read of all entries of a ledger."""
    return encode_entries(
        [encode_entry(LEDGER, number, number - 1, 1_000, payload) for number, payload in enumerate(payloads)]
    )


def ledger_payloads(image: bytes) -> list[bytes]:
    """Return the payloads that a client takes from such an answer: those of the sound entries from the first on."""
    reply, entries = answers.batch_of_entries(Answer(1, Status.OK, -1), memoryview(image), LEDGER, 0)
    assert (reply is Reply.OK) == bool(entries)
    return [bytes(entry.payload) for entry in entries]


def chunks(form: Format, data: bytes) -> Iterator[bytes]:
    """Yield a stream as it may arrive."""
    at = 0
    while at < len(data):
        size = form.random.choice((1, 3, 10, 200, len(data)))
        yield data[at : at + size]
        at += size


class EntryFormat(Format):
    """Entries, as a bookie sends them to readers."""

    name = "entries"
    headings = ("formats.md#Entry",)
    form = Form.STREAM
    refusals = ()

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return ledger_image(contents)

    @override
    def read(self, image: bytes) -> list[bytes]:
        return ledger_payloads(image)


class JournalFormat(Format):
    """A journal file that is written over what clients stored in its earlier use."""

    name = "journal"
    headings = ("formats-bookie.md#Journal",)
    form = Form.REUSED
    refusals = (JournalCorruptError,)
    durable_bytes = BLOCK_BYTES
    contents_max = 3

    @override
    def fit(self, content: bytes) -> bytes:
        """Begin the content where a block begins."""
        return bytes(BLOCK_BYTES - RECORD_HEADER_BYTES - ENTRY_HEADER_BYTES) + content[: 2 * BLOCK_BYTES]

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        tag = self.random.randbytes(TAG_BYTES)
        image = bytearray(old.ljust(FILE_BYTES, b"\0"))
        image[:BLOCK_BYTES] = encode_file_header(4, tag, FILE_BYTES)
        at, sequence = BLOCK_BYTES, 1
        for number, content in enumerate(contents, 1):
            records = [(Kind.ENTRY, encode_entry(LEDGER, number, -1, 0, content))]
            batch = bytearray(batch_bytes(records))
            _, sequence = encode_batch(batch, 0, records, tag, sequence, number)
            image[at : at + len(batch)] = batch
            at += len(batch)
        return bytes(image)

    @override
    def read(self, image: bytes) -> list[bytes]:
        _, batches = scan_bytes(image, 4, "journal", has_header=True)
        return [bytes(decode_entry(record.payload).payload) for batch in batches for record in batch.records]

    @override
    def pieces(self) -> list[bytes]:
        guess = self.random.choice((4, 0)).to_bytes(TAG_BYTES, "big")
        record = [(Kind.LAC, struct.pack(">qq", 1, 2))]
        batch = bytearray(batch_bytes(record))
        encode_batch(batch, 0, record, guess, 3, 2)
        return [bytes(batch)]


class BookieFrames(Format):
    """Adds on a connection to a bookie."""

    name = "bookie protocol"
    headings = ("formats.md#Bookie protocol",)
    form = Form.STREAM
    refusals = ()

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return b"".join(
            encode_request(
                BookieRequest(BookieOp.ADD, number + 1, LEDGER, number), encode_entry(LEDGER, number, -1, 0, content)
            )
            for number, content in enumerate(contents)
        )

    @override
    def read(self, image: bytes) -> list[bytes]:
        decoder, found = BookieFrameDecoder(), list[bytes]()
        with suppress(FrameError, EntryDamagedError):  # the connection ends, and no frame behind is looked for
            for chunk in chunks(self, image):
                for header, body in decoder.feed(chunk):
                    request, entry = decode_request(header), decode_entry(body)
                    if (request.ledger_id, request.entry_id) != (entry.ledger_id, entry.entry_id):
                        raise EntryDamagedError("a bookie refuses it")
                    found.append(bytes(entry.payload))
        return found


class PulsarFrames(Format):
    """Sends on a connection to a broker, some with blocks that only brokers put in front."""

    name = "pulsar frames"
    headings = ("formats-pulsar.md#Frames", "formats-pulsar.md#Broker entry metadata")
    form = Form.STREAM
    refusals = ()
    is_checked = False  # commands have no checksum

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return b"".join(self._frame(number, content) for number, content in enumerate(contents))

    def _frame(self, number: int, content: bytes) -> bytes:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, number
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        block = codec.encode_broker_metadata(pb.BrokerEntryMetadata(index=1 << 40)) * self.random.choice((0, 1, 3))
        return frame.encode_payload_frame(command, block + codec.encode_entry(metadata, content))

    @override
    def read(self, image: bytes) -> list[bytes]:
        decoder, found = frame.PulsarFrameDecoder(), list[bytes]()
        with suppress(ProtocolError, ChecksumError):
            for chunk in chunks(self, image):
                for command, section in decoder.feed(chunk):
                    if command.type == pb.BaseCommand.SEND and section is not None:
                        _, payload, noted = codec.received(section)
                        assert noted == codec.NO_BROKER_METADATA, "only brokers say what brokers noted"
                        found.append(bytes(payload))
        return found


class MetadataFrames(Format):
    """Writes of a node's value on a connection to the embedded store."""

    name = "metadata protocol"
    headings = ("formats-metadata.md#The metadata protocol",)
    form = Form.STREAM
    refusals = ()
    is_checked = False

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return b"".join(
            encode_frame([number + 1, int(EmbeddedOp.APPLY), [[2, "/a", content, -1]]])
            for number, content in enumerate(contents)
        )

    @override
    def read(self, image: bytes) -> list[bytes]:
        decoder, found = EmbeddedFrameDecoder(), list[bytes]()
        with suppress(MetadataProtocolError):
            for chunk in chunks(self, image):
                found += [frame[2][0][2] for frame in decoder.feed(chunk) if frame[1:2] == [int(EmbeddedOp.APPLY)]]
        return found


class ZookeeperFrames(Format):
    """Writes of a node's value on a connection to the ZooKeeper endpoint."""

    name = "zookeeper endpoint"
    headings = ("formats-metadata.md#The ZooKeeper endpoint",)
    form = Form.STREAM
    refusals = ()
    is_checked = False

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        greeting = jute.int32(0) + jute.int64(0) + jute.int32(1_000) + jute.int64(0) + jute.buffer(bytes(16))
        bodies = [
            jute.int32(number) + jute.int32(OpCode.SET_DATA) + jute.string("/a") + jute.buffer(content) + jute.int32(-1)
            for number, content in enumerate(contents)
        ]
        return b"".join(map(replies.frame, [greeting, *bodies]))

    @override
    def read(self, image: bytes) -> list[bytes]:
        cutter, bodies, found = FrameCutter(), list[bytes](), list[bytes]()
        with suppress(MetadataProtocolError):
            for chunk in chunks(self, image):
                bodies += cutter.feed(chunk)
            for body in bodies[1:]:
                request = requests.decode_request(body)
                if isinstance(request.body, requests.SetData):
                    assert request.body.value is not None
                    found.append(request.body.value)
        return found


class PartFrames(Format):
    """Calls of a part by its actor. Both ends trust each other, and the kernel checks the bytes."""

    name = "part and actor"
    headings = ("formats.md#A part and its actor",)
    form = Form.STREAM
    refusals = ()
    is_checked = False
    reads_anything = False

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        class Written(list[bytes]):
            write = list.append

            def is_closing(self) -> bool:
                return False

            async def drain(self) -> None:
                return None

        written = Written()

        async def send() -> None:
            channel = PartChannel(asyncio.StreamReader(), cast(Any, written))
            for number, content in enumerate(contents):
                await channel.send(CALL, number, "publish", (content,), {})

        asyncio.run(send())
        return b"".join(written)

    @override
    def read(self, image: bytes) -> list[bytes]:
        async def receive() -> list[bytes]:
            reader, found = asyncio.StreamReader(), list[bytes]()
            reader.feed_data(image)
            reader.feed_eof()
            channel = PartChannel(reader, cast(Any, None))
            while (frame := await channel.receive()) is not None:
                found.append(frame[3][0])
            return found

        return asyncio.run(receive())
