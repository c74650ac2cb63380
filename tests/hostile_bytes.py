"""Bytes that a client could send and that look like what the project writes into its own files (I19)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Mapping

import crc32c

from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.journal.format import Kind, encode_fence, encode_file_header, encode_lac
from heliograph.actors.bookie.journal.journal import JournalPosition
from heliograph.actors.bookie.store.checkpoint import PLAIN_VERSION, Mark, encode_mark
from heliograph.actors.bookie.store.entry_log import encode_map
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, encode_entry

RECORD = struct.Struct(">IIQQIB3x")  # checksum, payload length, tag, sequence, batch, kind
RECORD_BYTES = 32
MAP_TAIL_BYTES = 16
HIGH = 1 << 30  # a sequence and a batch that no file has reached
FORGED = 77_777_777_777  # and the two after it: ledgers that no client writes to, and which only these bytes name


def journal_record(tag: int, sequence: int, batch: int, kind: int, payload: bytes = b"") -> bytes:
    """Return a record of a journal that is sound but for the tag, which is a guess."""
    head = RECORD.pack(0, len(payload), tag, sequence, batch, kind)
    checksum = crc32c.crc32c(payload, crc32c.crc32c(head[4:]))
    return RECORD.pack(checksum, len(payload), tag, sequence, batch, kind) + payload


def journal_records(chance: random.Random, size: int, tags: Iterable[int]) -> bytes:
    """Return END records of these files, one at each place where a block can begin, for a payload of a lone add.

    The payload lies behind the headers of its record and its entry.
    """
    records = [journal_record(tag, HIGH, HIGH, Kind.END) for tag in tags]
    start = -(RECORD_BYTES + ENTRY_HEADER_BYTES) % RECORD_BYTES
    return (bytes(start) + b"".join(chance.choices(records, k=size // RECORD_BYTES)))[:size]


def journal_batch(tag: int, sequence: int, batch: int) -> bytes:
    """Return a whole batch of one block: a fence, a LAC and an entry that nobody sent to this bookie."""
    entry = encode_entry(FORGED + 2, 0, -1, 6, b"forged")
    records = ((Kind.FENCE, encode_fence(FORGED)), (Kind.LAC, encode_lac(FORGED + 1, 7)), (Kind.ENTRY, entry))
    data = b"".join(
        journal_record(tag, sequence + place, batch, kind, content) for place, (kind, content) in enumerate(records)
    )
    padding = bytes(BLOCK_BYTES - len(data) - RECORD_BYTES)
    return data + journal_record(tag, sequence + len(records), batch, Kind.END, padding)


def entry_map(usage: Mapping[int, int], before: int, size: int) -> bytes:
    """Return a payload of ``size`` bytes that ends with the map of an entry log.

    Args:
        before: bytes of the log before the payload.
    """
    pairs = b"".join(struct.pack(">qQ", *pair) for pair in sorted(usage.items()))
    body = struct.pack(">8sII", b"HELIOMAP", len(usage), crc32c.crc32c(pairs)) + pairs
    start = size - len(body) - MAP_TAIL_BYTES
    return bytes(start) + body + struct.pack(">Q8s", before + start, b"HELIOEND")


def mixture(chance: random.Random, size: int, tags: Iterable[int]) -> bytes:
    """Return a payload of pieces of all formats of a bookie, at places where a block may begin and at others.

    Args:
        tags: guesses at what the records of a journal file carry.
    """
    guesses = list(tags)
    entry = encode_entry(FORGED + 2, chance.randrange(3), -1, 6, b"forged")
    makers: list[Callable[[], bytes]] = [
        lambda: journal_record(chance.choice(guesses), HIGH, HIGH, Kind.END),
        lambda: journal_batch(chance.choice(guesses), chance.randrange(1, 300), chance.randrange(1, 12)),
        lambda: encode_file_header(chance.randrange(1, 60), chance.choice(guesses).to_bytes(8, "big"), BLOCK_BYTES),
        lambda: len(entry).to_bytes(4, "big") + entry,
        lambda: b"\1\0\0\0" + entry,
        lambda: encode_map({FORGED: 1}, chance.randrange(1 << 20)),
        lambda: encode_mark(Mark(HIGH, (JournalPosition(HIGH, 0),), PLAIN_VERSION)),
    ]
    content = bytearray()
    while len(content) < size:
        if chance.random() < 0.5:
            content += bytes(-(len(content) + RECORD_BYTES + ENTRY_HEADER_BYTES) % BLOCK_BYTES)
        content += chance.choice(makers)()
    return bytes(content[:size])
