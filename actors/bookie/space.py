"""Read-only before the disk is full: two marks, so that a bookie on the edge does not flap.

A disk is full when its used share is at ``full_share`` and less than ``headroom_bytes`` are free; it is well again when
its used share is below ``writable_share`` or so much is free. One full disk makes the bookie read-only, and it is
writable again when all are well. Adds by recovery go on while every disk has ``recovery_headroom_bytes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.bookie.config import BookieConfig
from actors.bookie.disk import Disk


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of one file system."""

    free_bytes: int
    total_bytes: int

    @property
    def used_share(self) -> float:
        """From 0 to 1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class Space:
    """``refuses`` is asked for every add, so it only looks at flags; ``update`` sets two of them.

    Attributes:
        is_draining: the bookie is to leave the cluster; counted by ``update``.
        is_unlisted: the session that told others of this bookie is lost: what it took now, nobody could find (I13).
    """

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self.is_read_only = False
        self.is_draining = False
        self.is_unlisted = False
        self.refuses_recovery = False
        self.free_bytes = 0
        self.total_bytes = 0

    def refuses(self, *, is_recovery: bool) -> bool:
        """Whether an add is to be answered with READ_ONLY."""
        if self.is_unlisted:  # I13
            return True
        return self.is_read_only and (not is_recovery or self.refuses_recovery)

    def update(self, usages: Sequence[DiskUsage]) -> None:
        """Take note of all disks' usage and of ``is_draining``."""
        assert usages, "a bookie has disks"
        config = self._config
        limit = config.writable_share if self.is_read_only else config.full_share
        self.is_read_only = self.is_draining or any(
            usage.used_share >= limit and usage.free_bytes < config.headroom_bytes for usage in usages
        )
        self.refuses_recovery = any(usage.free_bytes < config.recovery_headroom_bytes for usage in usages)
        self.free_bytes = min(usage.free_bytes for usage in usages)
        self.total_bytes = min(usage.total_bytes for usage in usages)


def measure(disk: Disk, directories: Sequence[Path]) -> list[DiskUsage]:
    """Usage of the directories' file systems. Blocks shortly.

    Raises:
        BookieStorageError: one cannot be asked.
    """
    return [DiskUsage(*disk.space(directory)) for directory in directories]
