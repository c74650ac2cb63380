"""The files of one journal directory: their names, and their way from made to used to recycled.

``<16 hex digits>.journal`` are in use or made ready; ``<16 hex digits>.spare`` are whole before the mark and wait to be
used again under a new, higher id. Overwriting a file that was written before syncs twice as fast as growing one.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

from actors.bookie.blocks import BlockBuffer
from actors.bookie.config import JOURNAL_SPARE_FILES_MAX
from actors.bookie.disk import Disk, DiskFile
from actors.bookie.precedence import Precedence

_USED = ".journal"
_SPARE = ".spare"
_DRAFT = ".draft"
_NAME = re.compile(r"[0-9a-f]{16}")
_FILL_BYTES = 1 << 20


class JournalFiles:
    """Safe to use from several threads."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, first_id: int) -> None:
        """
        Args:
            file_bytes: size of a file when it is made.
            first_id: ids given out are at least this, so that none that a mark knows of is used again.
        """
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._next_id = max([first_id, *(file_id + 1 for file_id in used_ids(disk, directory))])
        for name in _names(disk, directory, _DRAFT):
            disk.remove(directory / name)

    @property
    def precedence(self) -> Precedence:
        """By which the journal goes before readers of the same disk."""
        return self._disk.precedence

    @property
    def next_id(self) -> int:
        """The id of the next file made ready."""
        return self._next_id

    def make_ready(self) -> tuple[int, DiskFile]:
        """A file with a new id, all of its blocks written, its name durable: an old one if there is a spare.

        Raises:
            BookieStorageError: there is no room; nothing changed that matters.
        """
        with self._lock:
            file_id = self._next_id
            path = used_path(self._directory, file_id)
            spares = _names(self._disk, self._directory, _SPARE)
            if spares:
                self._disk.rename(self._directory / spares[0], path)
            else:
                self._disk.rename(self._fill(file_id), path)
            self._disk.sync_directory(self._directory)
            file = self._disk.open(path, is_direct=True)
            self._next_id = file_id + 1  # not before: a file that is never written to would be a gap for the replay
            return file_id, file

    def recycle_below(self, file_id: int) -> int:
        """Turn files with a lower id, all of whose records are stored elsewhere, into spares; returns how many."""
        with self._lock:
            spares = len(_names(self._disk, self._directory, _SPARE))
            done = [old for old in used_ids(self._disk, self._directory) if old < file_id]
            for old in done:
                path = used_path(self._directory, old)
                if spares < JOURNAL_SPARE_FILES_MAX:
                    self._disk.rename(path, path.with_suffix(_SPARE))
                    spares += 1
                else:
                    self._disk.remove(path)
            return len(done)

    def _fill(self, file_id: int) -> Path:
        draft = self._directory / f"{file_id:016x}{_DRAFT}"
        self._disk.remove(draft)
        zeros = BlockBuffer(_FILL_BYTES)
        file = self._disk.open(draft, create=True, is_direct=True)
        try:
            for offset in range(0, self._file_bytes, _FILL_BYTES):
                file.write_at(offset, zeros.view(min(_FILL_BYTES, self._file_bytes - offset)))
            file.sync()
        except BaseException:
            file.close()
            if not self._disk.is_poisoned:
                self._disk.remove(draft)
            raise
        file.close()
        return draft


def used_path(directory: Path, file_id: int) -> Path:
    """Path of a journal file."""
    return directory / f"{file_id:016x}{_USED}"


def used_ids(disk: Disk, directory: Path) -> list[int]:
    """Ids of the journal files in a directory, ascending."""
    return sorted(int(name.removesuffix(_USED), 16) for name in _names(disk, directory, _USED))


def _names(disk: Disk, directory: Path, kind: str) -> list[str]:
    """Names of a journal's files of one kind, ascending. Other files in the directory are not ours."""
    names = disk.names(directory)
    return [name for name in names if name.endswith(kind) and _NAME.fullmatch(name.removesuffix(kind))]
