"""The mark: the place in each journal before which everything is in synced entry logs and indexes.

Every data directory has a mark file. All are written after all directories were flushed, so the newest readable one is
right. The mark carries the number of the checkpoint, and so does every index: an index with a lower number than the
newest mark has lost a change, and the bookie refuses to start on it (I6).

A checkpoint takes the journals' positions first, then swaps the write cache and takes the changed ledger records, all
in one turn of the event loop. So everything that a journal holds before the mark is in the flushed half or was flushed
before, and fences reach the index even if no entry was added. A failed checkpoint is retried with the same positions,
half and records, and no other checkpoint starts before it is done.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import crc32c

from heliograph.actors.bookie.disk.disk import Disk, read_file, replace_file
from heliograph.actors.bookie.journal.journal import JournalPosition
from heliograph.actors.bookie.store.index import LedgerRecord
from heliograph.actors.bookie.store.write_cache import CacheHalf
from heliograph.actors.errors import BookieStorageError

MARK_NAME = "mark"
_MAGIC = b"HELIOMRK"
PLAIN_VERSION = 1
KEPT_VERSION = 2  # the same bytes: there may be kept journal files, which programs that read only version 1 would lose
TAGGED_VERSION = 4  # the same bytes: the journal files from the mark on are of version 2, each with a sound header
# One flipped bit makes no other version of any of these; the checksum does not cover them.
_VERSIONS_READ = (PLAIN_VERSION, KEPT_VERSION, TAGGED_VERSION)
_HEAD = struct.Struct(">8sIIQI")  # magic, version, CRC32C of what follows, checkpoint number, count of journals
_CHECKED_FROM = 16
_POSITION = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Mark:
    """One position for each journal directory, in the order of the configuration."""

    checkpoint: int
    positions: tuple[JournalPosition, ...]
    version: int = TAGGED_VERSION

    @property
    def has_headers(self) -> bool:
        """Whether each journal file from the mark on has a header, so that one without was damaged (I19)."""
        return self.version >= TAGGED_VERSION


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that one checkpoint writes."""

    mark: Mark
    half: CacheHalf
    ledgers: list[LedgerRecord]
    dropped: frozenset[int]  # ledgers whose deletion the index may not know yet


def encode_mark(mark: Mark) -> bytes:
    body = b"".join(_POSITION.pack(*position) for position in mark.positions)
    head = _HEAD.pack(_MAGIC, mark.version, 0, mark.checkpoint, len(mark.positions))
    checksum = crc32c.crc32c(head[_CHECKED_FROM:] + body)
    return _HEAD.pack(_MAGIC, mark.version, checksum, mark.checkpoint, len(mark.positions)) + body


def decode_mark(data: bytes, name: str) -> Mark:
    """Decode the content of a mark file.

    Raises:
        BookieStorageError: it is damaged, or of a version that this program does not read.
    """
    if len(data) < _HEAD.size:
        raise BookieStorageError(f"{name} is too short for a mark")
    magic, version, checksum, number, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or checksum != crc32c.crc32c(data[_CHECKED_FROM:]):
        raise BookieStorageError(f"{name} is damaged")
    if version not in _VERSIONS_READ:
        raise BookieStorageError(f"{name}: mark format {version}, this program reads {_VERSIONS_READ}")
    if len(data) != _HEAD.size + count * _POSITION.size:
        raise BookieStorageError(f"{name} has a wrong length")
    positions = tuple(JournalPosition(*pair) for pair in _POSITION.iter_unpack(data[_HEAD.size :]))
    return Mark(number, positions, version)


def write_mark(disk: Disk, directories: Sequence[Path], mark: Mark) -> None:
    """Write the mark durably into every directory. An error leaves the old mark or the new one in each."""
    content = encode_mark(mark)
    for directory in directories:
        replace_file(disk, directory / MARK_NAME, content)


def newest_mark(disk: Disk, directories: Sequence[Path]) -> Mark | None:
    """Return the newest sound mark; None if no directory has a mark.

    Raises:
        BookieStorageError: there are marks and none of them is sound.
    """
    marks: list[Mark] = []
    damage: BookieStorageError | None = None
    for directory in directories:
        path = directory / MARK_NAME
        try:
            marks.append(decode_mark(read_file(disk, path), str(path)))
        except FileNotFoundError:
            continue
        except BookieStorageError as error:
            damage = error
    if not marks and damage is not None:
        raise damage
    return max(marks, key=lambda mark: mark.checkpoint, default=None)
