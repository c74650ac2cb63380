"""A disk in memory, with a cache that a power cut empties: what was not synced is lost, kept or torn, sector by sector.

``Platter`` is what a machine has, and ``SimulatedDisk`` what one process sees of it. A process that is killed leaves
everything that it wrote. A power cut leaves of each file what was synced, and of the rest any sectors; and of each
directory what was synced, and of the later names any prefix. It may strike within any operation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from heliograph.actors.bookie.disk.io_priority import IoPriority
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError

SECTOR_BYTES = 512  # written whole or not at all
TOTAL_BYTES = 1 << 40


class Inode:
    """A file's content: as its readers see it, and as it is on the platter.

    Attributes:
        flips: by offset, bytes that went bad on the platter: what they were and what they are.
        proven: of a journal file, where its last whole batch begins. Damage before that is seen
            (docs/formats-bookie.md, "End or damage?").
    """

    def __init__(self) -> None:
        self.flips: dict[int, tuple[int, int]] = {}
        self.proven = 0
        self.content = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()  # sectors that differ, perhaps

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Change the content."""
        end = offset + len(data)
        if len(self.content) < end:
            self.dirty.update(range(len(self.content) // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
            self.content.extend(bytes(end - len(self.content)))
        self.content[offset:end] = data
        if self.flips:
            self.flips = {at: flip for at, flip in self.flips.items() if not offset <= at < end}
        self.dirty.update(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def flip(self, offset: int, mask: int) -> None:
        """Damage a byte."""
        good = self.content[offset]
        self.flips[offset] = (good, good ^ mask)
        self.content[offset] = self.durable[offset] = good ^ mask

    def mend(self) -> None:
        """Undo the damage where it still is."""
        for offset, (good, bad) in self.flips.items():
            for copy in (self.content, self.durable):
                if offset < len(copy) and copy[offset] == bad:
                    copy[offset] = good
        self.flips.clear()

    def cut_to(self, size: int) -> None:
        """Shorten the file; longer it does not get."""
        del self.content[size:]
        self.dirty = {sector for sector in self.dirty if sector * SECTOR_BYTES < size}

    def sync(self) -> None:
        if self.dirty or len(self.content) != len(self.durable):
            self.durable[:] = self.content
            self.dirty.clear()

    def torn(self, random: Random) -> bytearray:
        """Return what a power cut leaves: all that was synced, and any sectors of the rest."""
        share = random.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        size = len(self.content) if random.random() < 0.5 else len(self.durable)
        left = bytearray(self.durable[:size])
        for sector in sorted(self.dirty):
            if random.random() < share:
                start = sector * SECTOR_BYTES
                piece = self.content[start : start + SECTOR_BYTES]
                left.extend(bytes(max(0, start + len(piece) - len(left))))
                left[start : start + len(piece)] = piece
        left.extend(bytes(max(0, size - len(left))))
        return left


NameChange = tuple[Path, Inode | None]  # a name of a file from now on, or the end of the name


@dataclass
class Platter:
    """The files of a machine, and the tables that stand for RocksDB.

    Attributes:
        names: as processes see them.
        durable_names: as they are on the platter.
        pending: changes of names that are not durable, in order. The parts of one stay together in one directory.
        tables: the state of each index; every change is durable at once.
    """

    random: Random
    names: dict[Path, Inode] = field(default_factory=dict)
    durable_names: dict[Path, Inode] = field(default_factory=dict)
    pending: list[tuple[NameChange, ...]] = field(default_factory=list)
    directories: set[Path] = field(default_factory=set)
    tables: dict[Path, Any] = field(default_factory=dict)
    _listings: dict[Path, list[str]] = field(default_factory=dict)  # of directories, until a name changes

    def change(self, *parts: NameChange) -> None:
        """Change names, all of them or none as processes see it."""
        _apply(self.names, parts)
        self.pending.append(parts)
        self._listings.clear()

    def listing(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        found = self._listings.get(directory)
        if found is None:
            names = sorted(path.name for path in self.names if path.parent == directory)
            found = self._listings[directory] = names
        return found

    def sync_names(self, directory: Path) -> None:
        """Make the names of a directory durable. A file that moved out of it has its new name then."""
        moved = [parts for parts in self.pending if any(path.parent == directory for path, _ in parts)]
        for parts in moved:
            _apply(self.durable_names, parts)
            self.pending.remove(parts)

    def after_power_cut(self) -> Platter:
        """Return what is left of it when the power is back."""
        random, names = self.random, dict(self.durable_names)
        ends = {directory: random.choice((0, 1, 2, 99)) for directory in sorted(self.directories)}
        for parts in self.pending:
            for directory in {path.parent for path, _ in parts}:
                ends[directory] -= 1
            if all(ends[path.parent] >= 0 for path, _ in parts):
                _apply(names, parts)
        left: dict[int, Inode] = {}
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in left:
                made = left[id(inode)] = Inode()
                made.content = inode.torn(random)
                made.durable[:] = made.content
                made.flips, made.proven = dict(inode.flips), inode.proven
            names[path] = left[id(inode)]
        return Platter(random, names, dict(names), [], set(self.directories), self.tables)


def _apply(names: dict[Path, Inode], parts: tuple[NameChange, ...]) -> None:
    for path, inode in parts:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


class SimulatedDisk:
    """A stand-in for ``RealDisk``, for one process.

    Attributes:
        cut_in: operations until the power goes, 0 for never.
        ambush: a verb, and how many operations from the next such one on the power goes.
        after_cut: what is left, once the power went. What the process does from then on is for nothing.
        fails_next_sync: the next sync fails.
        is_full: files cannot grow.
        fails_next_index: the next change of an index fails.
    """

    def __init__(self, platter: Platter) -> None:
        self.platter = platter
        self.is_poisoned = False
        self.io_priority = IoPriority()
        self.cut_in = 0
        self.ambush: tuple[str, int] | None = None
        self.after_cut: Platter | None = None
        self.fails_next_sync = False
        self.is_full = False
        self.fails_next_index = False

    def begin(self, what: str, change: Callable[[], None]) -> None:
        """Do an operation, during which the power may go: before it or after it, which for a write means in it."""
        if self.ambush is not None and what.startswith(self.ambush[0]):
            self.cut_in, self.ambush = self.ambush[1], None
        is_last = self.cut_in == 1 and self.after_cut is None
        if self.cut_in:
            self.cut_in -= 1
        is_before = is_last and self.platter.random.random() < 0.5
        if is_before:
            self.after_cut = self.platter.after_power_cut()
        change()
        if is_last and not is_before:
            self.after_cut = self.platter.after_power_cut()

    def check(self) -> None:
        """Raise DiskPoisonedError if a sync has failed before."""
        if self.is_poisoned:
            raise DiskPoisonedError("a sync failed earlier")

    def sync(self, what: str, change: Callable[[], None]) -> None:
        """Make something durable."""
        self.check()
        if self.fails_next_sync:
            self.fails_next_sync, self.is_poisoned = False, True
            raise DiskPoisonedError(f"sync of {what} failed")
        self.begin(what, change)

    def room(self, inode: Inode, end: int) -> None:
        """Raise BookieStorageError if a file cannot grow to ``end`` bytes."""
        if self.is_full and end > len(inode.content):
            raise no_space("there is no room")

    # -- heliograph.actors.bookie.disk.disk.Disk

    def open(self, path: Path, *, create: bool = False, is_direct: bool = False) -> SimulatedFile:
        self.check()
        if create:
            if path in self.platter.names:
                raise BookieStorageError(f"cannot open {path}: it exists")
            self.begin(f"create {path.name}", lambda: self.platter.change((path, Inode())))
        inode = self.platter.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return SimulatedFile(self, path, inode)

    def exists(self, path: Path) -> bool:
        return path in self.platter.names or path in self.platter.directories

    def names(self, directory: Path) -> list[str]:
        return list(self.platter.listing(directory))

    def make_directory(self, directory: Path) -> None:
        self.platter.directories.add(directory)

    def rename(self, source: Path, target: Path) -> None:
        self.check()
        inode = self._inode(source)
        self.begin(f"rename {source.name}", lambda: self.platter.change((target, inode), (source, None)))

    def link(self, source: Path, target: Path) -> None:
        self.check()
        inode = self._inode(source)
        if target in self.platter.names:
            raise BookieStorageError(f"cannot link {source} to {target}: it exists")
        self.begin(f"link {source.name}", lambda: self.platter.change((target, inode)))

    def names_of(self, path: Path) -> int:
        inode = self._inode(path)
        return sum(each is inode for each in self.platter.names.values())

    def remove(self, path: Path) -> None:
        self.check()
        if path in self.platter.names:
            self.begin(f"remove {path.name}", lambda: self.platter.change((path, None)))

    def sync_directory(self, directory: Path) -> None:
        self.sync(f"directory {directory.name}", lambda: self.platter.sync_names(directory))

    def space(self, directory: Path) -> tuple[int, int]:
        return (0 if self.is_full else TOTAL_BYTES // 2), TOTAL_BYTES

    def lock(self, path: Path) -> SimulatedLock:
        return SimulatedLock()

    def _inode(self, path: Path) -> Inode:
        inode = self.platter.names.get(path)
        if inode is None:
            raise BookieStorageError(f"there is no {path}")
        return inode


class SimulatedLock:
    """A lock that nobody else wants."""

    def release(self) -> None:
        """Do nothing."""


class SimulatedFile:
    """A file of a ``SimulatedDisk``."""

    def __init__(self, disk: SimulatedDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._disk.check()
        self._disk.room(self._inode, offset + len(data))
        self._disk.begin(f"write {self.path.name}", lambda: self._inode.write(offset, data))

    def write_durably(self, offset: int, data: bytes | memoryview) -> None:
        try:
            self.write_at(offset, data)
        except BookieStorageError as error:
            self._disk.is_poisoned = True
            raise DiskPoisonedError(f"write of {self.path} failed: {error}") from error
        self.sync()

    def note_batch(self, start: int) -> None:
        """Note where the last whole batch of a journal file begins."""
        self._inode.proven = start

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._inode.content[offset : offset + length])

    def read_into(self, offset: int, memory: memoryview) -> int:
        found = self._inode.content[offset : offset + len(memory)]
        memory[: len(found)] = found
        return len(found)

    def sync(self) -> None:
        self._disk.sync(self.path.name, self._inode.sync)

    def size(self) -> int:
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._disk.check()
        self._disk.begin(f"truncate {self.path.name}", lambda: self._inode.cut_to(size))

    def allocate(self, size: int) -> None:
        self._disk.check()
        self._disk.room(self._inode, size)
        zeros = bytes(max(0, size - len(self._inode.content)))
        self._disk.begin(f"allocate {self.path.name}", lambda: self._inode.write(len(self._inode.content), zeros))

    def close(self) -> None:
        """Do nothing."""


def no_space(text: str) -> BookieStorageError:
    """Return the error of a disk without room, as the product makes it."""
    error = BookieStorageError(text)
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


def is_for_room(error: BaseException) -> bool:
    """Return whether an error of the product came from a disk without room."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ENOSPC
