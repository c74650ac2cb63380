"""Disks for tests: one whose operations fail on a countdown, and one that remembers what a power cut would leave."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.disk.disk import RealDisk

SYNC_SECONDS = 0.002  # as a real one may take: an acknowledgement that does not wait for it is seen before it
SECTOR_BYTES = 512  # what a disk writes whole or not at all


class FaultyDisk(RealDisk):
    """Fails one operation: the ``countdown``-th that changes the disk, syncs included, from now on."""

    def __init__(self, countdown: int, number: int = errno.EIO) -> None:
        super().__init__()
        self.countdown = countdown
        self.failed = ""
        self.seen: list[str] = []  # what was counted, in order
        self._number = number

    def raw_write(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        self._count("write", path, lambda: super(FaultyDisk, self).raw_write(fd, path, data[: len(data) // 2], offset))
        return super().raw_write(fd, path, data, offset)

    def raw_sync(self, fd: int, path: Path) -> None:
        self._count("sync", path)
        super().raw_sync(fd, path)

    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        return _write_and_sync(self, fd, path, data, offset)

    def raw_open(self, path: Path, create: bool) -> int:
        if create:
            self._count("create", path)
        return super().raw_open(path, create)

    def raw_rename(self, source: Path, target: Path) -> None:
        self._count("rename", source)
        super().raw_rename(source, target)

    def raw_link(self, source: Path, target: Path) -> None:
        self._count("link", source)
        super().raw_link(source, target)

    def raw_allocate(self, fd: int, path: Path, size: int) -> None:
        self._count("allocate", path)
        super().raw_allocate(fd, path, size)

    def raw_sync_directory(self, directory: Path) -> None:
        self._count("sync", directory)
        super().raw_sync_directory(directory)

    def count(self, what: str, half: Callable[[], object] = lambda: None) -> None:
        """Fail if it is this operation's turn; ``half`` is done of it then."""
        self.seen.append(what)
        self.countdown -= 1
        if self.countdown == 0:
            half()
            self.failed = what
            raise OSError(self._number, os.strerror(self._number))

    def _count(self, verb: str, path: Path, half: Callable[[], object] = lambda: None) -> None:
        self.count(f"{verb} {path.name}", half)


@dataclass
class Node:
    """A file's content: what is durable, and what was written since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        for offset, data in self.pending:
            apply_write(self.durable, offset, data)
        self.pending.clear()


class RecordingDisk(RealDisk):
    """Writes for real and keeps a log, from which ``rebuild`` makes what a power cut at any point would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = []
        self._inodes: dict[int, int] = {}

    def raw_open(self, path: Path, create: bool) -> int:
        fd = super().raw_open(path, create)
        inode = os.fstat(fd).st_ino
        if create:
            self.log.append(("create", path, (inode, len(self.log))))
            self._inodes[inode] = len(self.log) - 1
        return fd

    def raw_write(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        written = super().raw_write(fd, path, data, offset)
        self.log.append(("write", self._node(fd), offset, bytes(data[:written])))
        return written

    def raw_sync(self, fd: int, path: Path) -> None:
        time.sleep(SYNC_SECONDS)
        super().raw_sync(fd, path)
        self.log.append(("sync", self._node(fd)))

    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        return _write_and_sync(self, fd, path, data, offset)

    def raw_truncate(self, fd: int, path: Path, size: int) -> None:
        super().raw_truncate(fd, path, size)
        self.log.append(("truncate", self._node(fd), size))

    def raw_rename(self, source: Path, target: Path) -> None:
        super().raw_rename(source, target)
        self.log.append(("rename", source, target))

    def raw_link(self, source: Path, target: Path) -> None:
        super().raw_link(source, target)
        self.log.append(("link", source, target))

    def raw_allocate(self, fd: int, path: Path, size: int) -> None:
        held = os.fstat(fd).st_size
        super().raw_allocate(fd, path, size)
        self.log.append(("write", self._node(fd), held, bytes(max(0, size - held))))

    def raw_remove(self, path: Path) -> None:
        super().raw_remove(path)
        self.log.append(("remove", path))

    def raw_sync_directory(self, directory: Path) -> None:
        super().raw_sync_directory(directory)
        self.log.append(("sync directory", directory))

    def _node(self, fd: int) -> tuple[int, int]:
        inode = os.fstat(fd).st_ino
        return inode, self._inodes[inode]


def _write_and_sync(disk: RealDisk, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
    """Write durably in the two steps between which a test may fail or cut off."""
    written = disk.raw_write(fd, path, data, offset)
    disk.raw_sync(fd, path)
    return written


class Image:
    """The disk after the first ``steps`` entries of a log, with what was not synced lost, kept or torn."""

    def __init__(self, log: list[tuple[Any, ...]], steps: int, mode: str, chance: random.Random) -> None:
        assert mode in {"lost", "kept", "torn"}
        self._mode = mode
        self._chance = chance
        self._nodes: dict[Any, Node] = {}
        self.names: dict[Path, Any] = {}
        self._durable_names: dict[Path, Any] = {}
        self.index_snapshot: Path | None = None
        for step in log[:steps]:
            self._apply(*step)

    def write_to(self, root: Path) -> None:
        """Make ``root``, where the log was recorded, hold the image."""
        shutil.rmtree(root)
        names = self._durable_names if self._mode == "lost" else self.names
        made: dict[Any, Path] = {}
        for path, node_id in names.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if node_id in made:
                path.hardlink_to(made[node_id])
            else:
                path.write_bytes(self._content(self._nodes[node_id]))
                made[node_id] = path

    def _content(self, node: Node) -> bytes:
        content = bytearray(node.durable)
        for offset, data in node.pending:
            if self._mode == "kept":
                apply_write(content, offset, data)
            elif self._mode == "torn":
                for start in range(0, len(data), SECTOR_BYTES):
                    if self._chance.random() < 0.5:
                        apply_write(content, offset + start, data[start : start + SECTOR_BYTES])
        return bytes(content)

    def _apply(self, verb: str, *arguments: Any) -> None:
        if verb == "create":
            path, node_id = arguments
            self._nodes[node_id] = Node()
            self.names[path] = node_id
        elif verb == "write":
            node_id, offset, data = arguments
            self._nodes[node_id].pending.append((offset, data))
        elif verb == "sync":
            self._nodes[arguments[0]].sync()
        elif verb == "truncate":
            node = self._nodes[arguments[0]]
            node.sync()
            del node.durable[arguments[1] :]
        elif verb == "rename":
            self.names[arguments[1]] = self.names.pop(arguments[0])
        elif verb == "link":
            self.names[arguments[1]] = self.names[arguments[0]]
        elif verb == "remove":
            self.names.pop(arguments[0], None)
        elif verb == "sync directory":
            self._sync_directory(arguments[0])
        elif verb == "index":
            self.index_snapshot = arguments[0]

    def _sync_directory(self, directory: Path) -> None:
        for path in [path for path in self._durable_names if path.parent == directory]:
            del self._durable_names[path]
        self._durable_names.update({path: node for path, node in self.names.items() if path.parent == directory})


def apply_write(content: bytearray, offset: int, data: bytes) -> None:
    """Write into a file's content, zeros before it where the file was shorter."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
