"""Reading the log of a part on its node: its end first, and then what was written since, over rotations."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from heliograph.base.guard.line_file import rotated
from heliograph.cluster.logs.setup import SUFFIX

CHUNK_BYTES_MAX = 1 << 20  # of one answer of an actor # I15
FILES_LOOKED_AT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in a log: the inode of a file, which it keeps when it is rotated, and bytes from its start."""

    inode: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole lines of a log, and the place behind them. ``position`` is None while there is no file."""

    data: bytes
    position: LogPosition | None


def parts_logged(directory: Path) -> list[str]:
    """Return the parts that have a log in a directory, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))


def read_log(directory: Path, part: str, after: LogPosition | None, bytes_max: int = CHUNK_BYTES_MAX) -> LogChunk:
    """Return the end of a part's log, or what was written after a place.

    Args:
        after: None for the last ``bytes_max`` bytes; a place that is gone with its file counts as None.
        bytes_max: most bytes that are returned.

    Raises:
        OSError: a file cannot be read.
    """
    files = _open_files(directory / f"{part}{SUFFIX}")
    try:
        inodes = [os.fstat(file.fileno()).st_ino for file in files]
        if after is not None and after.inode in inodes:
            return _read_on(files[inodes.index(after.inode) :], after.offset, bytes_max)
        return _read_end(files, bytes_max)
    finally:
        for file in files:
            file.close()


def _open_files(path: Path) -> list[BinaryIO]:
    """Open the files of a log, oldest first. They are opened from the newest on, so that a rotation loses none."""
    found: dict[int, BinaryIO] = {}
    for number in range(FILES_LOOKED_AT_MAX):
        try:
            file = rotated(path, number).open("rb")
        except FileNotFoundError:
            if number:
                break
            continue  # just rotated
        inode = os.fstat(file.fileno()).st_ino
        if inode in found:
            file.close()
        else:
            found[inode] = file
    return [*reversed(found.values())]


def _read_end(files: list[BinaryIO], bytes_max: int) -> LogChunk:
    pieces: list[bytes] = []
    position: LogPosition | None = None
    left = bytes_max
    for file in reversed(files):
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - left)
        file.seek(begin)
        data = file.read(size - begin)
        if position is None:
            position = LogPosition(os.fstat(file.fileno()).st_ino, size)
        if begin:  # in the middle of a line
            pieces.append(data[data.find(b"\n") + 1 :])
            break
        pieces.append(data)
        left -= len(data)
        if left <= 0:
            break
    return LogChunk(b"".join(reversed(pieces)), position)


def _read_on(files: list[BinaryIO], offset: int, bytes_max: int) -> LogChunk:
    data = b""
    position = LogPosition(os.fstat(files[0].fileno()).st_ino, offset)
    for file in files:
        file.seek(offset)
        piece = file.read(bytes_max - len(data))
        is_cut = len(piece) == bytes_max - len(data)
        if is_cut:
            piece = piece[: piece.rfind(b"\n") + 1] or piece
        data += piece
        position = LogPosition(os.fstat(file.fileno()).st_ino, offset + len(piece))
        if is_cut:
            break
        offset = 0
    return LogChunk(data, position)
