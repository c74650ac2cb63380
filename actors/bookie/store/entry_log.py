"""Entry logs: the files that hold entries, in order of ledger and entry (docs/formats-bookie.md, "Entry log").

A log is a header and then records (u32 length, entry). A full log ends with a map that tells how many bytes of it each
ledger has. An entry carries its ids and its checksum, so every read is verified. The records of a run are the body of a
READ_BATCH answer, byte for byte.

The data of one sync is padded with zeros to a block boundary, so no later write touches a block that holds it.

A journal file can serve as a log too (``kept_log.py``). Its records lie apart. Its id is KEPT_ID_LEAST or above.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Lock

import crc32c

from heliograph.actors.bookie.config import ENTRY_BYTES_MAX, OPEN_LOGS_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES, MAPPED_BYTES_LEAST, BlockBuffer, new_memory, up_to_block
from heliograph.actors.bookie.disk.disk import Disk, DiskFile
from heliograph.actors.errors import BookieStorageError, EntryDamagedError
from heliograph.actors.wire.entry import CHECKED_AT, ENTRY_WORD, RECORD_HEAD, RECORD_HEAD_BYTES, check_entry

ENTRY_LOG_VERSION = 2
_VERSIONS_READ = (1, 2)  # version 1 had no zeros between records
HEADER_BYTES = 32
RUN_ENTRIES_MAX = 256  # entries of one row of the index
KEPT_ID_LEAST = 1 << 31  # ids of journal files that serve as logs
_LOG_NAME = re.compile(r"[0-7][0-9a-f]{7}\.log|[89a-f][0-9a-f]{7}\.kept")
_MAGIC = b"HELIOELG"
_HEADER = struct.Struct(">8sIIQ8x")  # magic, version, CRC32C of magic, version and id, id
_CHECKED = struct.Struct(">8sIQ")
_SIZE = struct.Struct(">I")
_MAP_MAGIC = b"HELIOMAP"
_MAP_HEAD = struct.Struct(">8sII")  # magic, count, CRC32C of the pairs
_MAP_PAIR = struct.Struct(">qQ")
_MAP_TAIL = struct.Struct(">Q8s")  # offset of the map, magic
_MAP_END = b"HELIOEND"
_MAP_BYTES_MAX = 16 << 20  # of a million ledgers, about (I15); a log with a larger one is looked up in the index
_JOURNALED = b"\x01\0\0\0"  # the end of a journal record's header, in the place of the length: an ENTRY, three zeros
_SPAN_BYTES_MAX = 1 << 20  # of such a read, unless one record is larger
_GAP_BYTES_MAX = 64 << 10  # between two records of a journal file that one read fetches together
_WRITE_BYTES = 1 << 20  # size of one write, which a journal on the same disk may have to wait for
_SMALL_BYTES = 4 << 10  # entries up to this size are joined before they are copied into the buffer
_DIRECT_BYTES_MIN = 128 << 10  # smaller reads go through the page cache, which then holds the neighbouring entries

assert _DIRECT_BYTES_MIN >= MAPPED_BYTES_LEAST, "memory for direct reads is on a block boundary"
assert int.from_bytes(_MAP_MAGIC[:4], "big") > ENTRY_BYTES_MAX, "a map cannot be taken for a record"


Entries = Sequence[tuple[int, bytes | memoryview]]  # of one ledger, ascending, each with its id
Records = tuple[tuple[int, ...], memoryview]  # the sizes of records, and the records one after another


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries with consecutive ids, stored one after another. ``sizes`` are of their records, length included.

    ``gaps`` are the bytes before each record that belong to others, the first one 0; empty if there are none. Only runs
    in kept journal files have gaps.
    """

    ledger_id: int
    first_entry_id: int
    log_id: int
    offset: int
    sizes: tuple[int, ...]
    gaps: tuple[int, ...] = ()

    @property
    def is_kept(self) -> bool:
        return self.log_id >= KEPT_ID_LEAST

    def offset_of(self, number: int) -> int:
        """Return the offset of a record, counted from 0."""
        return self.offset + sum(self.sizes[:number]) + sum(self.gaps[: number + 1])


class EntryLogWriter:
    """Appends to the newest log of a directory. Used by one thread at a time."""

    def __init__(self, disk: Disk, directory: Path, log_bytes: int, first_id: int) -> None:
        self._disk = disk
        self._directory = directory
        self._log_bytes = log_bytes
        self._next_id = first_id
        self._file: DiskFile | None = None
        self._offset = 0  # where the buffer begins in the file
        self._synced = 0
        self._buffer = BlockBuffer(_WRITE_BYTES)
        self._buffered = 0
        self._usage: dict[int, int] = {}
        self.log_id = -1

    def append(self, ledger_id: int, entries: Entries) -> list[EntryRun]:
        """Write entries of one ledger in ascending order; return their places. They are durable after ``sync``."""
        return [
            self._append_run(ledger_id, row[start : start + RUN_ENTRIES_MAX])
            for row in _rows(entries)
            for start in range(0, len(row), RUN_ENTRIES_MAX)
        ]

    def sync(self) -> None:
        """Make everything that was appended durable."""
        if self._file is not None and self._offset + self._buffered > self._synced:
            self._fill_block()
            self._write_out()
            self._file.sync()
            self._synced = self._offset

    def abandon(self) -> None:
        """Cut the log off after its last sync and use another log next. Called after an error, and to close.

        Cutting keeps repeated failures from filling the disk.
        """
        file, self._file = self._file, None
        self._buffered = 0
        if file is not None:
            with contextlib.suppress(BookieStorageError):  # what stays is garbage that no index row names
                file.truncate(self._synced)
            file.close()

    def close(self) -> None:
        """Write the map of the log in use and close the log."""
        if self._file is not None:
            self._seal()

    def usage(self) -> dict[int, int]:
        """Return the bytes of each ledger in the log that is being written."""
        return dict(self._usage)

    def _append_run(self, ledger_id: int, entries: Entries) -> EntryRun:
        if self._file is None or self._offset + self._buffered >= self._log_bytes:
            self._rotate()
        offset = self._offset + self._buffered
        sizes = [_SIZE.size + len(data) for _, data in entries]
        parts: list[bytes | memoryview] = []
        for _, data in entries:
            parts += (_SIZE.pack(len(data)), data)
        if sum(sizes) <= len(sizes) * _SMALL_BYTES:
            parts = [
                b"".join(parts)
            ]  # far faster than copying small pieces one by one; large entries are copied only once
        for part in parts:
            self._put(part)
            if self._buffered >= _WRITE_BYTES:
                self._write_out()
        self._usage[ledger_id] = self._usage.get(ledger_id, 0) + sum(sizes)
        return EntryRun(ledger_id, entries[0][0], self.log_id, offset, tuple(sizes))

    def _rotate(self) -> None:
        if self._file is not None:
            self._seal()
        log_id = self._next_id
        self._next_id += 1  # first: an id is never used twice, even if this fails
        file = self._disk.open(log_path(self._directory, log_id), create=True, is_direct=True)
        checksum = crc32c.crc32c(_CHECKED.pack(_MAGIC, ENTRY_LOG_VERSION, log_id))
        self.log_id = log_id
        self._file, self._usage = file, {}
        self._offset, self._synced, self._buffered = 0, 0, 0
        self._put(_HEADER.pack(_MAGIC, ENTRY_LOG_VERSION, checksum, log_id))
        self._disk.sync_directory(self._directory)

    def _seal(self) -> None:
        assert self._file is not None, "there is a log to seal"
        self._put(encode_map(self._usage, self._offset + self._buffered))
        self._write_out()
        self._file.sync()
        self._file.close()
        self._file = None

    def _put(self, data: bytes | memoryview) -> None:
        start, end = self._buffered, self._buffered + len(data)
        self._buffer.reserve(end, kept=start)
        self._buffer.memory[start:end] = data
        self._buffered = end

    def _fill_block(self) -> None:
        """Append zeros up to a block boundary."""
        self._put(bytes(-self._buffered % BLOCK_BYTES))

    def _write_out(self) -> None:
        """Write the whole blocks of the buffer and keep the rest in it."""
        rest = self._buffered % BLOCK_BYTES
        whole = self._buffered - rest
        if whole:
            assert self._file is not None, "there is a log to write to"
            self._file.write_at(self._offset, self._buffer.view(whole))
            memory = self._buffer.memory
            memory[:rest] = memory[whole : whole + rest]
            self._offset, self._buffered = self._offset + whole, rest


class EntryLogReader:
    """Reads the logs of one directory. Safe to use from several threads."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._open: OrderedDict[tuple[int, bool], DiskFile] = OrderedDict()  # by log, and whether it is read directly
        self._lock = Lock()

    def read(self, run: EntryRun, first: int, bytes_wanted: int) -> list[tuple[int, bytes]]:
        """Return copies of the records that ``read_into`` reads, each with its entry id. Raises as ``read_into``."""
        found: list[tuple[int, bytes]] = []
        for sizes, data in self.read_into(run, first, bytes_wanted, new_memory):
            for size, end in zip(sizes, accumulate(sizes), strict=True):
                found.append((first + len(found), bytes(data[end - size : end])))
        return found

    def read_into(
        self, run: EntryRun, first: int, bytes_wanted: int, take: Callable[[int], memoryview], last: int = 1 << 63
    ) -> list[Records]:
        """Read and verify the records (u32 length and entry) of a run from entry ``first`` on.

        Args:
            bytes_wanted: most bytes to read; one record is read in any case.
            take: returns memory of the size that it is called with.
            last: last entry to read.

        Returns:
            The records in their order, in one piece or several.

        Raises:
            BookieStorageError: the log cannot be read.
            EntryDamagedError: the first record is damaged. Damage of a later record ends the result before it.
            FileNotFoundError: the log was removed; look the run up again.
        """
        skip = first - run.first_entry_id
        assert 0 <= skip < len(run.sizes), "the run holds the entry"
        sizes = _fitting(run.sizes[skip : max(skip, last - run.first_entry_id) + 1], bytes_wanted)
        if run.is_kept:
            return self._read_kept(run, skip, len(sizes), take)
        return [self._read_row(run, skip, sizes, take)]

    def _read_row(self, run: EntryRun, skip: int, sizes: tuple[int, ...], take: Callable[[int], memoryview]) -> Records:
        """Read records that lie one behind the other."""
        offset, first = run.offset_of(skip), run.first_entry_id + skip
        data = self._bytes(run.log_id, offset, sum(sizes), take)
        done, end = _count_sound(data, sizes, run.ledger_id, first)
        if not done:
            try:
                _verify(data[: sizes[0]], sizes[0], run.ledger_id, first)
            except EntryDamagedError as error:
                path = log_path(self._directory, run.log_id)
                raise EntryDamagedError(f"{path} at offset {offset}: {error}") from error
            raise AssertionError("both checks of a record agree")
        return sizes[:done], data[:end]

    def _read_kept(self, run: EntryRun, skip: int, count: int, take: Callable[[int], memoryview]) -> list[Records]:
        """Read records of a journal file: neighbours by one read."""
        found: list[Records] = []
        path = log_path(self._directory, run.log_id)
        number, end = skip, skip + count
        while number < end:
            after, start, span = number + 1, run.offset_of(number), run.sizes[number]
            while after < end and run.gaps[after] <= _GAP_BYTES_MAX:
                if span + run.gaps[after] + run.sizes[after] > _SPAN_BYTES_MAX:
                    break
                span += run.gaps[after] + run.sizes[after]
                after += 1
            data = self._bytes(run.log_id, start, span, take)
            if not self._disk.exists(path):  # a journal may have written to it since, even a sound record (I19)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            at = 0
            while number < after:
                size = run.sizes[number]
                try:
                    record = _as_record(data[at : at + size], size)
                    _verify(record, size, run.ledger_id, run.first_entry_id + number)
                except EntryDamagedError as error:
                    if found:
                        return found
                    raise EntryDamagedError(f"{path} at offset {start + at}: {error}") from error
                found.append(((size,), record))
                number += 1
                at += size + (run.gaps[number] if number < after else 0)
        return found

    def forget(self, log_id: int) -> None:
        """Close a log that is to be removed. Reads that are running end well."""
        with self._lock:
            self._open.pop((log_id, False), None)
            self._open.pop((log_id, True), None)

    def close(self) -> None:
        """Close all files once the running reads are done."""
        with self._lock:
            self._open.clear()

    def _bytes(self, log_id: int, offset: int, size: int, take: Callable[[int], memoryview]) -> memoryview:
        """Read ``size`` bytes of a log, fewer at its end. A large read goes past the page cache."""
        start = offset
        if is_direct := size >= _DIRECT_BYTES_MIN:
            start -= offset % BLOCK_BYTES
            size = up_to_block(offset + size) - start
        memory = take(size)
        file = self._file(log_id, is_direct)
        filled = self._read_in_pieces(file, start, memory) if is_direct else file.read_into(start, memory)
        return memory[:filled][offset - start :]

    def _read_in_pieces(self, file: DiskFile, offset: int, memory: memoryview) -> int:
        filled = 0
        while filled < len(memory):
            piece = memory[filled:][: self._disk.io_priority.give_way()]
            count = file.read_into(offset + filled, piece)
            filled += count
            if count < len(piece):
                break
        return filled

    def _file(self, log_id: int, is_direct: bool) -> DiskFile:
        key = (log_id, is_direct)
        with self._lock:
            file = self._open.get(key)
            if file is None:
                file = self._disk.open(log_path(self._directory, log_id), is_direct=is_direct)
                self._open[key] = file
                if len(self._open) > OPEN_LOGS_MAX:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(key)
            return file


def log_path(directory: Path, log_id: int) -> Path:
    return directory / f"{log_id:08x}.{'kept' if log_id >= KEPT_ID_LEAST else 'log'}"


def log_ids(disk: Disk, directory: Path) -> list[int]:
    """Return the ids of the logs in a directory, ascending. Other files are ignored."""
    return sorted(int(name.partition(".")[0], 16) for name in disk.names(directory) if _LOG_NAME.fullmatch(name))


def encode_map(usage: Mapping[int, int], offset: int) -> bytes:
    """Encode the map of a log, from ``offset`` of its file to a block boundary: the bytes of each ledger."""
    pairs = b"".join(_MAP_PAIR.pack(*pair) for pair in sorted(usage.items()))
    body = _MAP_HEAD.pack(_MAP_MAGIC, len(usage), crc32c.crc32c(pairs)) + pairs
    zeros = bytes(-(offset + len(body) + _MAP_TAIL.size) % BLOCK_BYTES)
    return body + zeros + _MAP_TAIL.pack(offset, _MAP_END)


def read_map(disk: Disk, directory: Path, log_id: int) -> dict[int, int] | None:
    """Return the bytes of each ledger in a log by what may be its map; None if there is none.

    A log without a map may end with bytes of a client: the caller compares with the index (I19).

    Raises:
        BookieStorageError: the log cannot be read.
    """
    file = disk.open(log_path(directory, log_id))
    try:
        return _read_map(file)
    finally:
        file.close()


def _rows(entries: Entries) -> Iterator[Entries]:
    """Yield the entries, which ascend, in rows of consecutive ids."""
    if entries and entries[-1][0] - entries[0][0] == len(entries) - 1:  # there is no gap to look for
        yield entries
        return
    start = 0
    for index in range(1, len(entries) + 1):
        if index == len(entries) or entries[index][0] != entries[index - 1][0] + 1:
            yield entries[start:index]
            start = index


def _fitting(sizes: tuple[int, ...], bytes_wanted: int) -> tuple[int, ...]:
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > bytes_wanted:
            return sizes[: max(index, 1)]
    return sizes


def _as_record(data: memoryview, size: int) -> memoryview:
    """Turn an entry of a journal file, and the end of the header before it, into the record of a log, in its memory."""
    if len(data) != size or bytes(data[: _SIZE.size]) != _JOURNALED:
        raise EntryDamagedError("no record of a journal ends its header here")
    _SIZE.pack_into(data, 0, size - _SIZE.size)
    return data


def _count_sound(data: memoryview, sizes: tuple[int, ...], ledger_id: int, first_entry_id: int) -> tuple[int, int]:
    """Return how many records from the first on pass ``_verify``, and the end of the last of them.

    It is one loop, because a scan of small entries spends most of a bookie's time in it.
    """
    start, entry_id, total = 0, first_entry_id, len(data)
    for size in sizes:
        end = start + size
        if size < RECORD_HEAD_BYTES or end > total:
            break
        length, version, checksum, found_ledger_id, found_entry_id, _, _ = RECORD_HEAD.unpack_from(data, start)
        if length != size - _SIZE.size or version != ENTRY_WORD or found_entry_id != entry_id:
            break
        if found_ledger_id != ledger_id or crc32c.crc32c(data[start + CHECKED_AT : end]) != checksum:
            break
        start, entry_id = end, entry_id + 1
    return entry_id - first_entry_id, start


def _verify(record: memoryview, size: int, ledger_id: int, entry_id: int) -> None:
    if len(record) != size or record_length(record, 0) != size - _SIZE.size:
        raise EntryDamagedError(f"a record of {size} bytes was expected")
    found_ledger_id, found_entry_id, _ = check_entry(record[_SIZE.size :])
    if found_ledger_id != ledger_id or found_entry_id != entry_id:
        raise EntryDamagedError(f"expected entry {ledger_id}:{entry_id}, found {found_ledger_id}:{found_entry_id}")


def record_length(chunk: bytes | memoryview, offset: int) -> int:
    """Return the length of the entry in the record at ``offset``."""
    (length,) = _SIZE.unpack_from(chunk, offset)
    return int(length)


def check_header(data: bytes, log_id: int, path: Path) -> None:
    """Raise BookieStorageError unless the header of an entry log is sound and of a version that is read here."""
    if len(data) < HEADER_BYTES:
        raise BookieStorageError(f"{path} is shorter than its header")
    magic, version, checksum, found_id = _HEADER.unpack(data)
    if magic != _MAGIC or checksum != crc32c.crc32c(_CHECKED.pack(magic, version, found_id)) or found_id != log_id:
        raise BookieStorageError(f"{path} has a damaged header")
    if version not in _VERSIONS_READ:
        raise BookieStorageError(f"{path}: entry log format {version}, this program reads {_VERSIONS_READ}")


def _read_map(file: DiskFile) -> dict[int, int] | None:
    size = file.size()
    if size < HEADER_BYTES + _MAP_HEAD.size + _MAP_TAIL.size:
        return None
    offset, magic = _MAP_TAIL.unpack(file.read_at(size - _MAP_TAIL.size, _MAP_TAIL.size))
    if magic != _MAP_END or not HEADER_BYTES <= offset <= size - _MAP_HEAD.size - _MAP_TAIL.size:
        return None
    if size - offset > _MAP_BYTES_MAX:
        return None
    data = file.read_at(offset, size - _MAP_TAIL.size - offset)
    magic, count, checksum = _MAP_HEAD.unpack_from(data)
    pairs, zeros = data[_MAP_HEAD.size :][: count * _MAP_PAIR.size], data[_MAP_HEAD.size + count * _MAP_PAIR.size :]
    if magic != _MAP_MAGIC or len(pairs) != count * _MAP_PAIR.size or any(zeros) or crc32c.crc32c(pairs) != checksum:
        return None
    usage: dict[int, int] = dict(_MAP_PAIR.iter_unpack(pairs))
    return usage if all(ledger_id >= 0 for ledger_id in usage) else None
