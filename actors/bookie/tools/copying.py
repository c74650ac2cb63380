"""Copies the directories of a stopped bookie to other paths, and reads the copies back to verify them. It blocks.

Most of the bytes are in entry logs that are never written again. They may be copied before the bookie is stopped, so
that it is away only for the rest.

A copy is made beside its final path. It gets its name when every file was synced, read again, and has the checksum
of the bytes that were read from the source. So no incomplete directory has a name that a bookie is started on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import crc32c

from heliograph.actors.bookie.disk.disk import ReadOnlyDisk
from heliograph.actors.bookie.recovery.opening import LOCK_NAME
from heliograph.actors.bookie.tools.offline import find_folders
from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.base.system import files as system

CHUNK_BYTES = 8 << 20  # read and written at once  # I15
SPARE_BYTES = 256 << 20  # free space that a copy leaves on the disk that it is made on
COPYING = ".copying"  # the end of the name of a directory that is not complete
MOVED = ".moved"  # the end of the name of a directory that was copied elsewhere


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a directory: its path in it, its size in bytes, its mode, and when it was written last."""

    path: str
    size: int
    mode: int
    modified_ns: int


Ahead = frozenset[tuple[int, SourceFile]]  # files that were copied before their bookie stopped, with their directory


@dataclass(frozen=True, slots=True)
class CopyReport:
    """How much was copied and verified."""

    files: int
    bytes: int


class CopySource(Protocol):
    """The directories that are copied, wherever they are."""

    def files(self) -> list[list[SourceFile]]:
        """Return the files of each directory. Raises DirectoryLockedError if their bookie runs."""

    def finished(self) -> list[list[SourceFile]]:
        """Return the files of each directory that are not written again, whether their bookie runs or not."""

    def read(self, number: int, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a file of the directory with that number; fewer at the end of the file."""


class LocalSource:
    """Directories of this machine. ``held`` keeps their bookie from starting."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the directories.

        Raises:
            DirectoryLockedError: the bookie is running.
        """
        disk = ReadOnlyDisk()
        with contextlib.ExitStack() as locks:
            for directory in self._directories:
                if disk.exists(directory / LOCK_NAME):
                    locks.callback(disk.lock(directory / LOCK_NAME).release)
            yield

    def files(self) -> list[list[SourceFile]]:
        """Return the files of each directory.

        Raises:
            NotFoundError: a directory is missing.
        """
        return [list(_files(directory)) for directory in self._directories]

    def finished(self) -> list[list[SourceFile]]:
        """Return the entry logs of each directory, without the newest one and the logs that a journal needs."""
        return [[*_logs(directory)] for directory in self._directories]

    def read(self, number: int, path: str, offset: int, size: int) -> bytes:
        with open(self._directories[number] / path, "rb") as file:
            file.seek(offset)
            return file.read(size)


@contextlib.contextmanager
def alone(targets: Sequence[Path]) -> Iterator[None]:
    """Keep a copy of before, whose caller has ended, from writing to the same targets.

    Raises:
        ServiceNotReadyError: it is not over.
    """
    root = targets[0].parent
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceNotReadyError(f"an earlier copy to {root} is not over yet") from None
        yield
    finally:
        os.close(descriptor)


def copy_ahead(source: CopySource, targets: Sequence[Path]) -> Ahead:
    """Copy the files that a running bookie does not change any more. Return the copied files, for ``copy``.

    A file that garbage collection removes meanwhile is left out, and so is one that could not be copied now.

    Raises:
        NotFoundError, ConflictError, ResourceError: as ``copy`` raises before anything is copied.
    """
    listed = source.finished()
    for target in targets:
        _require_empty(target)
    _require_space(targets, listed)
    ahead = set()
    for number, (target, files) in enumerate(zip(targets, listed, strict=True)):
        draft = _draft(target)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        for file in files:
            try:
                _copy_file(source, number, file, draft / file.path)
            except (OSError, ResourceError):
                (draft / file.path).unlink(missing_ok=True)
            else:
                ahead.add((number, file))
    return frozenset(ahead)


def copy(
    source: CopySource,
    targets: Sequence[Path],
    *,
    ahead: Ahead = frozenset(),
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> CopyReport:
    """Copy each directory of ``source`` to the target of the same number.

    Args:
        ahead: what ``copy_ahead`` has copied to the same targets.
        progress: called with the bytes copied so far, and the bytes of all files.

    Raises:
        NotFoundError: a directory of the source is missing.
        ConflictError: a target holds something; nothing was copied.
        ResourceError: the disk of a target is too small, or it gave back other bytes than were written.
        OSError: a disk failed. Copies that are not complete are removed by the next call.
    """
    listed = source.files()
    assert len(listed) == len(targets), "each directory has a target"
    total = sum(file.size for files in listed for file in files)
    left = [[file for file in files if (number, file) not in ahead] for number, files in enumerate(listed)]
    for target in targets:
        _require_empty(target)
    _require_space(targets, left)
    done = total - sum(file.size for files in left for file in files)
    for number, (target, files) in enumerate(zip(targets, left, strict=True)):
        draft = _draft(target)
        _keep(draft, {file.path for file in listed[number]} - {file.path for file in files})
        for file in files:
            _copy_file(source, number, file, draft / file.path)
            done += file.size
            progress(done, total)
        for directory in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
            _sync(directory)
    for target in targets:
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()  # it is empty
        _draft(target).rename(target)
        _sync(target.parent)
    return CopyReport(sum(map(len, listed)), total)


def _draft(target: Path) -> Path:
    return target.with_name(target.name + COPYING)


def _keep(draft: Path, names: set[str]) -> None:
    """Have a draft with these files and no others."""
    if not names:
        shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700, exist_ok=True)
    for path in draft.rglob("*"):
        if path.is_file() and str(path.relative_to(draft)) not in names:
            path.unlink()


def retire(directories: Sequence[Path]) -> list[Path]:
    """Give copied directories names that no bookie starts on. Return the names, without missing directories.

    Raises:
        OSError: a directory cannot be renamed, as one that is a mount point.
    """
    retired = []
    for directory in directories:
        if directory.exists():
            names = (directory.with_name(f"{directory.name}{MOVED}{number or ''}") for number in range(1000))
            free = next(name for name in names if not name.exists())
            directory.rename(free)
            _sync(directory.parent)
            retired.append(free)
    return retired


def find_copies(bookie_id: str, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Find copies of a bookie's directories among ``roots`` and directly below them.

    Whether they are the newest ones, the bookie's start checks.

    Returns:
        the journal directories, and the data directories.

    Raises:
        BadRequestError: there are none.
        ConflictError: they are of another bookie, one has no cookie, or one is missing.
    """
    found = find_folders(roots)
    where = ", ".join(map(str, roots))
    if found.cookie is None or found.damage:
        raise ConflictError(f"{where}: {'; '.join(found.damage)}: copy each directory whole", field="to")
    if found.cookie.bookie_id != bookie_id:
        raise ConflictError(f"{where} holds data of {found.cookie.bookie_id}, not of {bookie_id}", field="to")
    wanted = len(found.cookie.journal_directories), len(found.cookie.data_directories)
    if (len(found.journals), len(found.data)) != wanted:
        raise ConflictError(
            f"{where} holds {len(found.journals)} journal and {len(found.data)} data directories, and {bookie_id} has "
            f"{wanted[0]} and {wanted[1]}",
            field="to",
        )
    return found.journals, found.data


def require_apart(sources: Sequence[Path], targets: Sequence[Path]) -> None:
    """Check that no target is a source, or within one, or around one.

    Raises:
        BadRequestError: a target is.
    """
    for target in targets:
        for source in sources:
            if target == source or source in target.parents or target in source.parents:
                raise BadRequestError(f"{target} is not apart from {source}, which is to be copied", field="to")


def _files(directory: Path) -> Iterator[SourceFile]:
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is no directory: there is nothing to copy", field="bookie")
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path != directory / LOCK_NAME:
            found = path.stat()
            yield SourceFile(str(path.relative_to(directory)), found.st_size, found.st_mode & 0o777, found.st_mtime_ns)


def _logs(directory: Path) -> Iterator[SourceFile]:
    """Yield the logs that are not written any more. A journal that writes to one has another name of it."""
    for path in (*sorted(directory.glob("*.log"))[:-1], *sorted(directory.glob("*.kept"))):
        with contextlib.suppress(FileNotFoundError):  # garbage collection has removed it
            found = path.stat()
            if found.st_nlink == 1:
                yield SourceFile(path.name, found.st_size, found.st_mode & 0o777, found.st_mtime_ns)


def _copy_file(source: CopySource, number: int, file: SourceFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    checksum = offset = 0
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode), "wb") as written:
        while data := source.read(number, file.path, offset, CHUNK_BYTES):
            written.write(data)
            checksum, offset = crc32c.crc32c(data, checksum), offset + len(data)
        written.flush()
        system.sync(written.fileno())
        system.forget_cached(written.fileno())  # so that the disk is read, not the cache
    if offset != file.size or _checksum(target) != checksum:
        raise ResourceError(
            f"{target} lacks a part of the copy ({offset} of {file.size} bytes): its disk is not sound, or the "
            "bookie was started meanwhile",
            field="to",
        )


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            checksum = crc32c.crc32c(data, checksum)
    return checksum


def _require_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConflictError(
            f"{target} is there and not empty: name another place; for a copy of yours, helio bookies place",
            field="to",
        )


def _require_space(targets: Sequence[Path], listed: Sequence[Sequence[SourceFile]]) -> None:
    needed: dict[int, tuple[Path, int]] = {}  # by disk
    for target, files in zip(targets, listed, strict=True):
        there = next(path for path in (target, *target.parents) if path.exists())
        path, size = needed.get(there.stat().st_dev, (there, SPARE_BYTES))
        needed[there.stat().st_dev] = (path, size + sum(file.size for file in files))
    for path, size in needed.values():
        if (free := shutil.disk_usage(path).free) < size:
            raise ResourceError(f"the disk of {path} has {free} bytes free, and {size} are needed", field="to")


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.sync(descriptor)
    finally:
        os.close(descriptor)
