"""A batch whose messages go to several consumers, and the small copies that those get which need few messages of it."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.actors.broker.dispatch.message_bits import places_of
from heliograph.actors.broker.managed_ledger.read_budget import ReadBudget
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import HeliographError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb

CUT_SHARE_MAX = 0.5  # of the messages of a batch; a larger part is sent with all of it, which costs no copy
CUT_BYTES_MIN = 4 << 10  # of a batch; a smaller one is sent as a whole
CUT_UNPACKED_BYTES_MAX = 2 << 20  # of a batch that is compressed; to unpack a larger one would hold the loop  # I24
CUT_MESSAGES_MAX = 4_000  # of a batch; to find those of a larger one would hold the event loop  # I24


class DividedBatches:
    """The batch of a subscription that was divided last, while other consumers need it, too.

    It may be lost, like entries read ahead: it can be read again.

    Attributes:
        batch: None if no consumer needs one any more.
    """

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self.batch: DividedBatch | None = None
        self._bytes = 0

    def part(self, index: int, entry: TopicEntry, bits: int, messages: int, left: int) -> TopicEntry:
        """Return a consumer's delivery for some messages of an entry, of which ``left`` more wait for others."""
        batch = self.batch
        if batch is None or batch.index != index:
            if not left:
                return entry  # to find the messages costs more than a cut saves once
            batch = DividedBatch(index, entry)
            self.drop()
            self.batch = batch
        part = batch.cut(bits, messages)
        self._count(batch.size if left else 0)
        if not left:
            self.batch = None
        return part

    def drop(self) -> None:
        self.batch = None
        self._count(0)

    def _count(self, size: int) -> None:
        before, self._bytes = self._bytes, size
        if before != size:
            if before:
                self._budget.release(self, before)
            if size:
                self._budget.hold(self, size)


class DividedBatch:
    """An entry in memory while messages of it wait for consumers.

    A small part is sent as a batch with the same number of messages, of which the others are emptied, so that message
    ids stay what they are. Without that, a thousand workers that take a job at a time would each get the whole batch.
    """

    def __init__(self, index: int, entry: TopicEntry) -> None:
        self.index = index
        self.entry = entry
        self.size = len(entry.payload)  # bytes in memory, with what was unpacked of it
        self._metadata = pb.MessageMetadata()
        self._plain: bytes | memoryview = b""
        self._ends: Sequence[int] | None = None  # of its messages; empty if the batch cannot be cut

    def cut(self, bits: int, messages: int) -> TopicEntry:
        """Return an entry with at least the ``messages`` messages in ``bits``: the whole entry unless these are few."""
        entry = self.entry
        if messages > entry.messages * CUT_SHARE_MAX or len(entry.payload) < CUT_BYTES_MIN:
            return entry
        if self._ends is None:
            self._ends = self._read()
        if not self._ends:
            return entry
        plain, ends, pieces, at = self._plain, self._ends, list[bytes | memoryview](), 0
        for place in places_of(bits):
            if place > at:
                pieces.append(codec.EMPTIED * (place - at))
            pieces.append(plain[ends[place - 1] if place else 0 : ends[place]])
            at = place + 1
        pieces.append(codec.EMPTIED * (entry.messages - at))
        payload, metadata = b"".join(pieces), self._metadata
        metadata.uncompressed_size = len(payload)
        part = codec.encode_entry(metadata, payload)
        return entry.with_payload(bytes(entry.payload[: entry.broker_bytes]) + part if entry.broker_bytes else part)

    def _read(self) -> Sequence[int]:
        """Return where each message ends in the plain payload. Nothing if the batch is too large, or not what it
        claims."""
        entry = self.entry
        try:
            metadata, payload = codec.split(entry.payload)
            is_packed = codec.is_compressed(metadata)
            is_large = is_packed and metadata.uncompressed_size > CUT_UNPACKED_BYTES_MAX
            if metadata.encryption_keys or is_large or entry.messages > CUT_MESSAGES_MAX:
                return ()
            plain = codec.plain_view(metadata, payload)
            ends = entry.ends or codec.ends_of(metadata, plain)
        except HeliographError:
            return ()
        metadata.compression = pb.NONE
        self._metadata, self._plain = metadata, plain
        if is_packed:
            self.size += len(plain)
        return ends
