"""The disk monitor: it makes a bookie read-only before a disk is full.

A disk is full when its used share reaches ``full_share`` and less than ``headroom_bytes`` are free, or when less than
the reserve is free: a journal file and a flush of the write cache, which a bookie needs to go on with what it accepted.
Entries that stay in their journal file need no room in a flush, and their files do not come back: the reserve holds the
next one, and while only fences and LACs are written, no file is kept and two are used in turn.
It is usable again when its used share falls below ``writable_share`` or ``headroom_bytes`` are free, and a quarter more
than the reserve is free; two thresholds keep a bookie from flapping. One full disk makes the bookie read-only, and it
becomes writable when all disks are usable. Adds of recoveries are taken while every disk has
``recovery_headroom_bytes``.

Before that, a disk is nearly full: its used share reaches ``warning_share`` and less than twice ``headroom_bytes`` are
free, or less than twice the reserve is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import Disk


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Free and total bytes of one file system."""

    free_bytes: int
    total_bytes: int

    @property
    def used_share(self) -> float:
        """The used share of the file system, from 0 to 1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class DiskMonitor:
    """Decides whether adds are refused. ``refuses`` runs for every add and only reads flags; ``update`` sets them.

    Attributes:
        is_draining: the bookie is to leave the cluster; ``update`` takes it into account.
    """

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self.is_read_only = False
        self.is_draining = False
        self.is_full = False
        self.is_nearly_full = False
        self.refuses_recovery = False
        self.used_share = 0.0
        self.free_bytes = 0
        self.total_bytes = 0

    def refuses(self, *, is_recovery: bool) -> bool:
        """Return whether an add is to be answered with READ_ONLY."""
        return self.is_read_only and (not is_recovery or self.refuses_recovery)

    def update(self, usages: Sequence[DiskUsage]) -> None:
        """Set the flags from the usage of all disks and from ``is_draining``."""
        assert usages, "a bookie has disks"
        config, reserve = self._config, self._config.reserve_bytes
        share, least = (config.writable_share, reserve + reserve // 4) if self.is_full else (config.full_share, reserve)
        self.is_full = any(
            usage.free_bytes < least or (usage.used_share >= share and usage.free_bytes < config.headroom_bytes)
            for usage in usages
        )
        self.is_nearly_full = self.is_full or any(
            usage.free_bytes < 2 * reserve
            or (usage.used_share >= config.warning_share and usage.free_bytes < 2 * config.headroom_bytes)
            for usage in usages
        )
        self.is_read_only = self.is_draining or self.is_full
        self.refuses_recovery = any(usage.free_bytes < config.recovery_headroom_bytes for usage in usages)
        self.used_share = max(usage.used_share for usage in usages)
        self.free_bytes = min(usage.free_bytes for usage in usages)
        self.total_bytes = min(usage.total_bytes for usage in usages)

    def figures(self) -> dict[str, Any]:
        """Return the statistics of the disks, by the names of their metrics."""
        return {
            "is_disk_full": self.is_full,
            "is_disk_nearly_full": self.is_nearly_full,
            "disk_used_share": self.used_share,
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
        }


def measure(disk: Disk, directories: Sequence[Path]) -> list[DiskUsage]:
    """Return the usage of the directories' file systems. Blocks briefly.

    Raises:
        BookieStorageError: the usage of one file system cannot be read.
    """
    return [DiskUsage(*disk.space(directory)) for directory in directories]
