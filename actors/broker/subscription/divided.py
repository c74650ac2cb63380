"""A batch whose messages go to several consumers, and the small copies that those get which need few messages of it."""

from __future__ import annotations

import struct
from dataclasses import replace

from heliograph.actors.broker.managed_ledger.read_budget import ReadBudget
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import HeliographError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb

CUT_SHARE_MAX = 0.5  # of the messages of a batch; a larger part is sent with all of it, which costs no copy
CUT_BYTES_MIN = 4 << 10  # of a batch; a smaller one is sent as a whole
CUT_UNPACKED_BYTES_MAX = 2 << 20  # of a batch that is compressed; to unpack a larger one would hold the loop  # I24
CUT_MESSAGES_MAX = 4_000  # of a batch; to find those of a larger one would hold the event loop  # I24

_U32 = struct.Struct(">I")


class DividedBatches:
    """The batch of a subscription that was divided last, while other consumers need it, too.

    It may be lost, as what was read ahead: it can be read again.
    """

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self._batch: DividedBatch | None = None
        self._bytes = 0

    def entry(self, index: int) -> TopicEntry | None:
        """Return an entry, None if it was not divided last."""
        batch = self._batch
        return batch.entry if batch is not None and batch.index == index else None

    def part(self, index: int, entry: TopicEntry, bits: int, messages: int, left: int) -> TopicEntry:
        """Return what a consumer gets for some messages of an entry, of which ``left`` more wait for others."""
        batch = self._batch
        if batch is None or batch.index != index:
            if not left:
                return entry  # to find the messages costs more than a cut saves once
            batch = DividedBatch(index, entry)
            self.drop()
            self._batch = batch
        part = batch.cut(bits, messages)
        self._count(batch.size if left else 0)
        if not left:
            self._batch = None
        return part

    def drop(self) -> None:
        """Forget the batch."""
        self._batch = None
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
        self.size = len(entry.payload)  # bytes in memory, with the messages one by one once they are read
        self._metadata = pb.MessageMetadata()
        self._messages: list[bytes] | None = None  # each with its header; empty if the batch cannot be cut

    def cut(self, bits: int, messages: int) -> TopicEntry:
        """Return an entry with at least the ``messages`` messages in ``bits``: the whole entry unless these are few."""
        entry = self.entry
        if messages > entry.messages * CUT_SHARE_MAX or len(entry.payload) < CUT_BYTES_MIN:
            return entry
        if self._messages is None:
            self._messages = self._read()
        if not self._messages:
            return entry
        pieces: list[bytes] = []
        at = 0
        while bits:
            place = (bits & -bits).bit_length() - 1
            pieces += (codec.EMPTIED * (place - at), self._messages[place])
            at = place + 1
            bits &= bits - 1
        plain = b"".join((*pieces, codec.EMPTIED * (entry.messages - at)))
        metadata = self._metadata
        metadata.uncompressed_size = len(plain)
        head = bytes(entry.payload[: entry.broker_bytes])
        return replace(entry, payload=head + codec.encode_entry(metadata, plain))

    def _read(self) -> list[bytes]:
        """Return the messages with their headers. None at all if the batch is too large, or not what it claims."""
        try:
            metadata, payload = codec.split(self.entry.payload)
            is_large = codec.is_compressed(metadata) and metadata.uncompressed_size > CUT_UNPACKED_BYTES_MAX
            if metadata.encryption_keys or is_large or self.entry.messages > CUT_MESSAGES_MAX:
                return []
            plain = codec.plain_payload(metadata, payload)
            found, at = [], 0
            for _, value in codec.iterate_batch(metadata, plain):
                end = at + 4 + _U32.unpack_from(plain, at)[0] + len(value)
                found.append(plain[at:end])
                at = end
        except HeliographError:
            return []
        metadata.compression = pb.NONE
        self._metadata = metadata
        self.size += len(plain)
        return found
