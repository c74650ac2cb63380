"""Bytes that a client could send and that look like what the project writes into its own files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Mapping

import crc32c

from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES

RECORD = struct.Struct(">IIQQIB3x")  # checksum, payload length, file id, sequence, batch, kind
RECORD_BYTES = 32
MAP_TAIL_BYTES = 16
HIGH = 1 << 30  # a sequence and a batch that no file has reached


def journal_record(file_id: int, sequence: int, batch: int, kind: int, payload: bytes = b"") -> bytes:
    """Return a record of a journal that is sound but for the number of the file's use, which is a guess."""
    head = RECORD.pack(0, len(payload), file_id, sequence, batch, kind)
    checksum = crc32c.crc32c(payload, crc32c.crc32c(head[4:]))
    return RECORD.pack(checksum, len(payload), file_id, sequence, batch, kind) + payload


def journal_records(chance: random.Random, size: int, file_ids: Iterable[int]) -> bytes:
    """Return END records of these files, one at each place where a block can begin, for a payload of a lone add.

    The payload lies behind the headers of its record and its entry.
    """
    records = [journal_record(file_id, HIGH, HIGH, 4) for file_id in file_ids]
    start = -(RECORD_BYTES + ENTRY_HEADER_BYTES) % RECORD_BYTES
    return (bytes(start) + b"".join(chance.choices(records, k=size // RECORD_BYTES)))[:size]


def entry_map(usage: Mapping[int, int], before: int, room: bytes) -> bytes:
    """Return a payload of the size of ``room`` that ends with the map of an entry log.

    Args:
        before: bytes of the log before the payload.
    """
    pairs = b"".join(struct.pack(">qQ", *pair) for pair in sorted(usage.items()))
    body = struct.pack(">8sII", b"HELIOMAP", len(usage), crc32c.crc32c(pairs)) + pairs
    start = len(room) - len(body) - MAP_TAIL_BYTES
    return room[:start] + body + struct.pack(">Q8s", before + start, b"HELIOEND")
