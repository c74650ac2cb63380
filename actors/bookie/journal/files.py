"""The files of one journal directory: how they are named, made, used and recycled.

``<16 hex digits>.journal`` is in use or ready for use. ``<16 hex digits>.spare`` lies completely before the mark and is
kept to be used again under a new, higher id: overwriting a written file syncs twice as fast as growing one.

A file gets the header of its new use, with a random tag, before it gets its name. Both are durable before the journal
writes into it: so each file of that name has a sound header, and what lies in it from before is of another tag (I19).

A file that a data directory keeps as an entry log has a second name there (``store/kept_log.py``). Only its name here
is removed, and it comes back as a spare when no row of an index points to it. While files are kept, new ones are
allocated and not filled with zeros, because that would write each byte twice after all.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple

from heliograph.actors.bookie.config import JOURNAL_ADOPTED_FILES_MAX, JOURNAL_SPARE_FILES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES, BlockBuffer
from heliograph.actors.bookie.disk.disk import Disk, DiskFile, replace_file
from heliograph.actors.bookie.disk.io_priority import IoPriority
from heliograph.actors.bookie.journal.format import TAG_BYTES, encode_empty_file, encode_file_header

_USED = ".journal"
_SPARE = ".spare"
_DRAFT = ".draft"
_NAME = re.compile(r"[0-9a-f]{16}")
_FILL_BYTES = 1 << 20


class ReadyFile(NamedTuple):
    """A file that the journal may write into. Its records carry the tag."""

    file_id: int
    tag: bytes
    file: DiskFile


class JournalFiles:
    """One journal directory. Safe to use from several threads."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_bytes: int,
        first_id: int,
        new_tag: Callable[[], bytes] | None = None,
    ) -> None:
        """
        Args:
            file_bytes: size of a file when it is made.
            first_id: lowest id to give out, so that no id is used again that a mark may name.
            new_tag: returns bytes that nobody can guess; None: from the system.
        """
        self._new_tag = new_tag or secret_tag
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._are_kept = False  # the files that were recycled last became entry logs
        self._next_id = max([first_id, *(file_id + 1 for file_id in used_ids(disk, directory))])
        for name in _names(disk, directory, _DRAFT):
            disk.remove(directory / name)

    @property
    def io_priority(self) -> IoPriority:
        return self._disk.io_priority

    @property
    def next_id(self) -> int:
        return self._next_id

    def make_ready(self) -> ReadyFile:
        """Return a file with a new id whose blocks are written and whose name is durable; a spare is used first.

        Raises:
            BookieStorageError: there is no room. Nothing changed that matters.
        """
        with self._lock:
            file_id, tag = self._next_id, self._new_tag()
            path = used_path(self._directory, file_id)
            spares = _names(self._disk, self._directory, _SPARE)
            if spares:
                spare = self._directory / spares[0]
                self._begin_again(spare, file_id, tag)
                self._disk.rename(spare, path)
            else:
                self._disk.rename(self._fill(file_id, tag), path)
            self._disk.sync_directory(self._directory)
            file = self._disk.open(path, is_direct=True)
            self._next_id = file_id + 1  # last: an id without a written file would be a gap for the replay
            return ReadyFile(file_id, tag, file)

    def leave_empty_file(self) -> int:
        """Make a file of one block that older releases, and this one, read as a journal of no records; return its id.

        Raises:
            BookieStorageError: it may be there or not, and does no harm.
        """
        with self._lock:
            file_id = self._next_id
            self._next_id += 1  # first: an id is never used twice, even if this fails
            replace_file(self._disk, used_path(self._directory, file_id), encode_empty_file(file_id))
            return file_id

    @property
    def directory(self) -> Path:
        return self._directory

    def recycle_below(self, file_id: int, kept: Container[int] = ()) -> int:
        """Turn the files with a lower id into spares; return how many. All their records must be stored elsewhere.

        Args:
            kept: files that became entry logs, and are not used again. A file with a second name never is.
        """
        with self._lock:
            spares = len(_names(self._disk, self._directory, _SPARE))
            done = [old for old in used_ids(self._disk, self._directory) if old < file_id]
            for old in done:
                path = used_path(self._directory, old)
                self._are_kept = old in kept or self._disk.names_of(path) > 1  # I1
                if self._are_kept:
                    self._disk.remove(path)
                elif spares < JOURNAL_SPARE_FILES_MAX and self._is_whole(path):
                    self._disk.rename(path, path.with_suffix(_SPARE))
                    spares += 1
                else:
                    self._disk.remove(path)
            return len(done)

    def adopt(self, path: Path) -> bool:
        """Make a dead entry log a spare, if it has no other name and spares are few; return whether it is one now.

        No row of an index may point to it. Its name is gone then, durably as soon as its directory is synced.

        Raises:
            BookieStorageError: it may have its new name or the old one, or both.
        """
        with self._lock:
            spares = _names(self._disk, self._directory, _SPARE)
            if len(spares) >= JOURNAL_ADOPTED_FILES_MAX:
                return False
            self._disk.sync_directory(self._directory)  # its name of a journal file is gone for good
            if self._disk.names_of(path) > 1:
                return False
            number = max([0, *(int(name.removesuffix(_SPARE), 16) + 1 for name in spares)])
            self._disk.rename(path, self._directory / f"{number:016x}{_SPARE}")
            self._disk.sync_directory(self._directory)
            return True

    def _is_whole(self, path: Path) -> bool:
        file = self._disk.open(path)
        try:
            return file.size() >= self._file_bytes
        finally:
            file.close()

    def _begin_again(self, spare: Path, file_id: int, tag: bytes) -> None:
        """Give a spare its full size, if it was cut off as an entry log, and the header of its next use, durably."""
        file = self._disk.open(spare)
        try:
            if file.size() < self._file_bytes:
                file.allocate(self._file_bytes)
            file.write_at(0, encode_file_header(file_id, tag, file.size()))
            file.sync()
        finally:
            file.close()

    def _fill(self, file_id: int, tag: bytes) -> Path:
        draft = self._directory / f"{file_id:016x}{_DRAFT}"
        self._disk.remove(draft)
        file = self._disk.open(draft, create=True, is_direct=True)
        try:
            if self._are_kept:
                file.allocate(self._file_bytes)
            else:
                self._write_zeros(file)
            header = BlockBuffer(BLOCK_BYTES)
            header.memory[:] = encode_file_header(file_id, tag, file.size())
            file.write_at(0, header.view(BLOCK_BYTES))
            file.sync()
        except BaseException:
            file.close()
            if not self._disk.is_poisoned:
                self._disk.remove(draft)
            raise
        file.close()
        return draft

    def _write_zeros(self, file: DiskFile) -> None:
        zeros = BlockBuffer(_FILL_BYTES)
        for offset in range(0, self._file_bytes, _FILL_BYTES):
            file.write_at(offset, zeros.view(min(_FILL_BYTES, self._file_bytes - offset)))


def secret_tag() -> bytes:
    return secrets.token_bytes(TAG_BYTES)


def used_path(directory: Path, file_id: int) -> Path:
    return directory / f"{file_id:016x}{_USED}"


def file_id_of(path: Path) -> int:
    return int(path.name.removesuffix(_USED), 16)


def used_ids(disk: Disk, directory: Path) -> list[int]:
    """Return the ids of the journal files in a directory, ascending."""
    return sorted(int(name.removesuffix(_USED), 16) for name in _names(disk, directory, _USED))


def _names(disk: Disk, directory: Path, kind: str) -> list[str]:
    """Return the names of the journal's files of one kind, ascending. Other files in the directory are ignored."""
    names = disk.names(directory)
    return [name for name in names if name.endswith(kind) and _NAME.fullmatch(name.removesuffix(kind))]
