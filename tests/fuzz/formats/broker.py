"""Formats that brokers store in ledgers, read as bookies answer and by the recovery that the broker runs."""

from __future__ import annotations

import base64
import struct
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgpack
from typing_extensions import override

from heliograph.actors.broker.compaction.chain import Positions
from heliograph.actors.broker.compaction.deletions import PastCompaction
from heliograph.actors.broker.compaction.reader import _entry as kept_entry
from heliograph.actors.broker.compaction.reader import open_compacted
from heliograph.actors.broker.compaction.record import encode_history, encode_index, encode_kept
from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.recovery import _replay_ledger
from heliograph.actors.broker.dedup import record as dedup_record
from heliograph.actors.broker.dedup.dedup import Remembered, StoredChunks
from heliograph.actors.broker.dedup.log import _read_snapshot
from heliograph.actors.broker.delayed.record import decode_run, encode_run
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError
from heliograph.base.errors import ChecksumError, ProtocolError
from heliograph.metadata.model import CompactedLedger
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_single, full_head
from tests.fuzz.formats.format import Form, Format
from tests.fuzz.formats.wire import ledger_image, ledger_payloads

R = TypeVar("R")
KINDS_OF_PLACES = 4  # where a content may stand in an entry


@dataclass
class Reader:
    """A reader of a ledger whose entries are in memory."""

    payloads: list[bytes]

    @property
    def last_add_confirmed(self) -> int:
        return len(self.payloads) - 1

    async def read(self, first: int, last: int, max_bytes: int = 0) -> list[Any]:
        if not 0 <= first <= last <= self.last_add_confirmed:
            raise EntryDamagedError("no such entry")
        return [SimpleNamespace(entry_id=at, payload=self.payloads[at]) for at in range(first, last + 1)]

    async def close(self) -> None:
        """Do nothing."""


def finished(work: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(R, done.value)
    raise AssertionError("nothing is waited for")


def entry_of(content: bytes, place: int) -> bytes:
    """Return an entry with a content as its payload, within a batch, as a key or in its properties."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=place, publish_time=1)
    match place % KINDS_OF_PLACES:
        case 0:
            return codec.encode_entry(metadata, content)
        case 1:
            heads = [full_head(len(content), None, None, None), full_head(0, content, {"a": "b"}, None)]
            return encode_batch(metadata, heads, [content, b""], pb.LZ4)
        case 2:
            return encode_single(metadata, full_head(0, content, None, None), b"")
    text = content.decode("latin-1")
    return encode_single(metadata, full_head(0, None, {text: text}, None), b"")


def content_of(section: memoryview | bytes) -> bytes:
    """Return the content of such an entry."""
    metadata, stored, _ = codec.received(memoryview(section))
    plain = codec.plain_payload(metadata, stored)
    match metadata.sequence_id % KINDS_OF_PLACES:
        case 0:
            return plain
        case 1:
            (single, first), (keyed, last) = codec.iterate_batch(metadata, plain)
            assert (last, single.HasField("partition_key"), keyed.partition_key_b64_encoded) == (b"", False, True)
            return first
        case 2:
            return base64.b64decode(metadata.partition_key)
    (pair,) = metadata.properties
    assert pair.key == pair.value
    return pair.value.encode("latin-1")


class TopicEntries(Format):
    """Entries of a topic, with what the broker noted in front of some."""

    name = "entries of a topic"
    headings = (
        "formats-broker.md#Entry of a topic's ledger",
        "formats-pulsar.md#Entries",
        "formats-pulsar.md#Broker entry metadata",
    )
    form = Form.STREAM
    refusals = (ChecksumError, ProtocolError)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return ledger_image([self._entry(content, place) for place, content in enumerate(contents)])

    def _entry(self, content: bytes, place: int) -> bytes:
        noted = pb.BrokerEntryMetadata(broker_timestamp=1, index=place)
        block = codec.encode_broker_metadata(noted) if self.random.random() < 0.5 else b""
        return block + entry_of(content, place)

    @override
    def read(self, image: bytes) -> list[bytes]:
        return [content_of(payload) for payload in ledger_payloads(image)]


class CursorLedger(Format):
    """Acknowledgements within batches: clients choose each bit of what is stored."""

    name = "cursor ledger"
    headings = ("formats-broker.md#Cursor ledger", "formats-broker.md#What a crash may leave")
    form = Form.STREAM
    refusals = (EntryDamagedError,)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        cursor, chain, base = Cursor(0), _chain(), 0
        records = _parts(cursor, chain, -1)
        for place, content in enumerate(contents):
            cursor.acknowledge_messages(1 + 2 * place, int.from_bytes(content + b"\1", "little"))
            if self.random.random() < 0.3:
                cursor.count_redelivery(1 + 2 * place)
                cursor.count_crash(1 + 2 * place, 1)
            if self.random.random() < 0.3:
                cursor.take_delta()
                first = len(records)
                records += _parts(cursor, chain, base)
                base = first
            else:
                delta = cursor.take_delta()
                assert delta is not None
                records.append(cursor_record.encode_delta(delta, chain, base))
        return ledger_image(records)

    @override
    def read(self, image: bytes) -> list[bytes]:
        reader, cursor = Reader(ledger_payloads(image)), Cursor(0)
        if not reader.payloads:
            raise EntryDamagedError("the ledger has no entry")
        finished(_replay_ledger(cast(Any, reader), reader.last_add_confirmed, cursor, _chain()))
        assert cursor.mark == 0
        items = list(cursor.partial_items())
        assert [index for index, _ in items] == [1 + 2 * place for place in range(len(items))]
        return [bits.to_bytes((bits.bit_length() + 7) // 8, "little")[:-1] for _, bits in items]


def _chain() -> LedgerChain:
    chain = LedgerChain()
    chain.append(7, 100)
    return chain


def _parts(cursor: Cursor, chain: LedgerChain, base: int) -> list[bytes]:
    steps = cursor_record.snapshot_steps(cursor, chain, base)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast(list[bytes], done.value)


class DedupLedger(Format):
    """Snapshots of what is known of producers, whose names are texts of clients."""

    name = "deduplication ledger"
    headings = ("formats-broker.md#Deduplication ledger",)
    form = Form.STREAM
    refusals = (EntryDamagedError,)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        known: list[Remembered | StoredChunks] = []
        records, base = list[bytes](), -1
        for place, content in enumerate(contents):
            known.append(Remembered(content.decode("latin-1"), place, 5))
            snapshot = [*known, StoredChunks("p", content[:16], place, 1, 5)]
            parts = dedup_record.encode(snapshot, Position(7, place), base)
            base = len(records)
            records += parts
        return ledger_image(records)

    @override
    def read(self, image: bytes) -> list[bytes]:
        reader = Reader(ledger_payloads(image))
        if not reader.payloads:
            raise EntryDamagedError("the ledger has no entry")
        position, snapshot = finished(_read_snapshot(cast(Any, reader), reader.last_add_confirmed))
        *known, chunks = snapshot
        assert position == Position(7, len(known) - 1)
        found = []
        for place, one in enumerate(known):
            assert isinstance(one, Remembered)
            assert (one.persisted, one.active_ms) == (place, 5)
            found.append(one.name.encode("latin-1"))
        assert chunks == StoredChunks("p", found[-1][:16], len(known) - 1, 1, 5)
        return found

    @override
    def pieces(self) -> list[bytes]:
        return [msgpack.packb(("p", b"x" * 16, 9)), msgpack.packb(["p", 1 << 60, 1 << 40])]


class DelayedLedger(Format):
    """Times of delivery, which producers choose."""

    name = "delayed index"
    headings = ("formats-broker.md#Delayed index",)
    form = Form.STREAM
    refusals = (EntryDamagedError,)

    @override
    def fit(self, content: bytes) -> bytes:
        return bytes([content[0] & 0x7F, *content[1:8]]) if len(content) >= 8 else content.rjust(8, b"\0")

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        items = [(int.from_bytes(content, "big"), place) for place, content in enumerate(contents)]
        return ledger_image([encode_run([item], _chain()) for item in items])

    @override
    def read(self, image: bytes) -> list[bytes]:
        found = []
        for place, payload in enumerate(ledger_payloads(image)):
            (item,) = decode_run(payload, _chain())
            assert item is not None
            assert item[1] == place
            found.append(item[0].to_bytes(8, "big"))
        return found

    @override
    def pieces(self) -> list[bytes]:
        return [b"\x01\x01\0\0" + self.random.randbytes(4), b"\x93" * 8, struct.pack(">q", 7)]


class CompactedForm(Format):
    """The entries that compaction kept, and the index behind them."""

    name = "compacted ledger"
    headings = ("formats-broker.md#Compacted ledger",)
    form = Form.VALUE
    refusals = (EntryDamagedError, ChecksumError, ProtocolError)
    HORIZON = Position(7, 50)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        self._count = len(contents)
        positions = [Position(7, 2 * place) for place in range(self._count)]
        kept = [
            encode_kept(position, entry_of(content, place))
            for place, (position, content) in enumerate(zip(positions, contents, strict=True))
        ]
        history = encode_history([PastCompaction(self.HORIZON, 5)])
        return ledger_image([*kept, *encode_index(Positions(positions)), history])

    @override
    def read(self, image: bytes) -> list[bytes]:
        reader = Reader(ledger_payloads(image))

        async def opened(ledger_id: int) -> Reader:
            return reader

        record = CompactedLedger(9, self._count, self.HORIZON)
        base = SimpleNamespace(budget=None)
        chain, found = finished(
            open_compacted(record, _chain(), cast(Any, base), cast(Any, SimpleNamespace(open=opened)), "public")
        )
        if not found.history:  # an older release writes none, so that a ledger without one is no damage
            assert len(reader.payloads) == self._count + 1
        return [
            content_of(kept_entry(reader.payloads[place], chain.kept[place]).payload) for place in range(self._count)
        ]
