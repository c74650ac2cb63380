"""Disks of machines: small file systems in memory, one for each bookie, that can be filled and lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 512 << 20
_FILLER = "filler"


@contextmanager
def disks(directories: Sequence[Path]) -> Iterator[None]:
    """Mount a small disk at each directory for the length of the block."""
    mounted: list[Path] = []
    try:
        for directory in directories:
            directory.mkdir(parents=True, mode=0o700)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
            mounted.append(directory)
        yield
    finally:
        for directory in mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False, capture_output=True)


def fill(disk: Path, left: int) -> None:
    """Leave so many bytes free on a disk."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with (disk / _FILLER).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, free - left))


def make_room(disk: Path) -> None:
    """Undo ``fill``."""
    (disk / _FILLER).unlink(missing_ok=True)


def wipe(disk: Path) -> None:
    """Lose everything on a disk, as when an empty one is put in its place."""
    for entry in disk.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
