"""Reading whole logs without an index: which entries a log holds. For tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heliograph.actors.bookie.config import ENTRY_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import up_to_block
from heliograph.actors.bookie.disk.disk import Disk
from heliograph.actors.bookie.journal.format import RECORD_HEADER_BYTES, Kind
from heliograph.actors.bookie.journal.scan import scan_kept
from heliograph.actors.bookie.store.entry_log import (
    HEADER_BYTES,
    KEPT_ID_LEAST,
    check_header,
    log_path,
    read_map,
    record_length,
)
from heliograph.actors.errors import EntryDamagedError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, check_entry, entry_head

SIZE_BYTES = 4  # of the length of a record
_SCAN_BYTES = 4 << 20


def read_usage(disk: Disk, directory: Path, log_id: int) -> dict[int, int]:
    """Return the bytes of each ledger in a log: from its map, or from a scan if it has none.

    Raises:
        BookieStorageError: the log cannot be read.
        JournalCorruptError: it is a journal file, and is damaged.
    """
    usage = read_map(disk, directory, log_id)
    if usage is None:
        usage = {}
        found = scan_kept_log if log_id >= KEPT_ID_LEAST else scan_log
        for _, ledger_id, _, record in found(disk, directory, log_id):
            usage[ledger_id] = usage.get(ledger_id, 0) + len(record)
    return usage


def scan_kept_log(disk: Disk, directory: Path, log_id: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield what ``scan_log`` yields of a journal file that serves as a log, for entries of every size.

    Raises:
        BookieStorageError: the file cannot be read.
        JournalCorruptError: it is damaged.
    """
    file = disk.open(log_path(directory, log_id))
    try:
        for batch in scan_kept(file):
            for kind, offset, payload in batch.records:
                if kind is Kind.ENTRY:
                    ledger_id, entry_id, _ = entry_head(payload)
                    record = len(payload).to_bytes(SIZE_BYTES, "big") + bytes(payload)
                    yield offset + RECORD_HEADER_BYTES - SIZE_BYTES, ledger_id, entry_id, record
    finally:
        file.close()


def scan_log(disk: Disk, directory: Path, log_id: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield offset, ledger id, entry id and record of each entry, up to the first damaged one.

    Raises:
        BookieStorageError: the log has no sound header, or cannot be read.
    """
    path = log_path(directory, log_id)
    file = disk.open(path)
    try:
        version = check_header(file.read_at(0, HEADER_BYTES), log_id, path)
        offset, chunk, chunk_start = HEADER_BYTES, b"", 0
        while True:
            head = offset - chunk_start
            if head + SIZE_BYTES > len(chunk) or head + SIZE_BYTES + record_length(chunk, head) > len(chunk):
                wanted = SIZE_BYTES + ENTRY_BYTES_MAX
                chunk, chunk_start, head = file.read_at(offset, max(_SCAN_BYTES, wanted)), offset, 0
            record = _sound_record(chunk, head)
            if record is not None:
                ledger_id, entry_id, _ = entry_head(memoryview(record)[SIZE_BYTES:])
                yield offset, ledger_id, entry_id, record
                offset += len(record)
                continue
            filled = up_to_block(offset) - offset
            if version == 1 or not filled or chunk[head : head + filled] != bytes(filled):
                return
            offset += filled
    finally:
        file.close()


def _sound_record(chunk: bytes, offset: int) -> bytes | None:
    if offset + SIZE_BYTES > len(chunk):
        return None
    length = record_length(chunk, offset)
    end = offset + SIZE_BYTES + length
    if not ENTRY_HEADER_BYTES <= length <= ENTRY_BYTES_MAX or end > len(chunk):
        return None
    try:
        check_entry(memoryview(chunk)[offset + SIZE_BYTES : end])
    except EntryDamagedError:
        return None
    return chunk[offset:end]
