"""The file of a backup: one line, a frame for each node, parents first, and one frame with the summary.

docs/formats-metadata.md describes the bytes. A file is replaced as a whole, and one frame is in memory at a time. Calls
block for the time of one frame at most, except the end of writing, which syncs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import crc32c
import msgpack
from pydantic import TypeAdapter, ValidationError

from heliograph.base.errors import BadRequestError
from heliograph.base.home import PRIVATE_FILE
from heliograph.base.system.files import sync
from heliograph.metadata.backup.node import BackupNode, DigestSum
from heliograph.metadata.errors import RecordError

MAGIC = b"heliograph backup v"
FORMAT_VERSION = 1
FRAME_BYTES_MAX = 8 << 20  # of one node with its ACL  # I15
_HEAD = struct.Struct("<II")  # length, CRC32C
_NODE, _SUMMARY = 1, 2


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """The summary of a backup, in its last frame.

    Args:
        instance_id: of the cluster; empty: the store held none.
        created_ms: the time of the backup, in milliseconds since the epoch.
        nodes: how many there are.
        digest: of all nodes.
        last_ledger_id: the last assigned ledger id, or the greatest that a node names.
        cluster: the value of the cluster's record, which a restore writes last.
        restored: the value of the mark of an earlier backup that was not accepted.
        ledgers: how many ledgers the nodes describe.
        acls: how many nodes have an ACL of their own.
    """

    instance_id: str
    created_ms: int
    nodes: int
    digest: bytes
    last_ledger_id: int
    cluster: bytes | None
    restored: bytes | None
    ledgers: int
    acls: int


class BackupWriter:
    """Writes a file under another name and renames it at the end, so the name has a whole backup or its old content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + ".new")
        self._temporary.unlink(missing_ok=True)  # of an attempt before
        self._file = os.fdopen(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb")
        self._file.write(MAGIC + b"%d\n" % FORMAT_VERSION)
        self._is_finished = False
        self.digest = DigestSum()
        self.ledgers = 0
        self.acls = 0
        self.greatest_ledger_id = 0

    def __enter__(self) -> BackupWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_finished:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, node: BackupNode) -> None:
        """Append a node.

        Raises:
            OSError: it cannot be written.
        """
        self._frame([_NODE, *node.fields()])
        self.digest.add(node)
        ledger_id = node.ledger_id()
        self.ledgers += ledger_id > 0
        self.acls += node.acl is not None
        self.greatest_ledger_id = max(self.greatest_ledger_id, ledger_id)

    def finish(self, summary: BackupSummary) -> None:
        """Append the summary, sync, and give the file its name.

        Raises:
            OSError: it cannot be written; the name is as it was.
        """
        assert not self._is_finished, "a backup ends once"
        self._frame([_SUMMARY, asdict(summary)])
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self._path)
        self._is_finished = True
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync(directory)
        finally:
            os.close(directory)

    def _frame(self, content: list[Any]) -> None:
        payload = msgpack.packb(content)
        assert len(payload) <= FRAME_BYTES_MAX, "a node and its ACL fit into a frame"
        self._file.write(_HEAD.pack(len(payload), crc32c.crc32c(payload)))
        self._file.write(payload)


def read_summary(path: Path) -> BackupSummary:
    """Check every byte of a file, and return its summary.

    Raises:
        RecordError: the file is damaged, ends early, or is of a newer version.
        BadRequestError: it cannot be opened.
    """
    digest = DigestSum()
    for item in _items(path):
        if isinstance(item, BackupSummary):
            if (digest.nodes, digest.value()) != (item.nodes, item.digest):
                raise RecordError(f"{path} holds other nodes than its summary says: it is damaged")
            return item
        digest.add(item)
    raise RecordError(f"{path} ends early: it is damaged")


def read_nodes(path: Path) -> Iterator[BackupNode]:
    """Yield the nodes of a file, parents first.

    Raises:
        RecordError, BadRequestError: as for ``read_summary``; nodes may have been yielded before.
    """
    return (item for item in _items(path) if isinstance(item, BackupNode))


def _items(path: Path) -> Iterator[BackupNode | BackupSummary]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadRequestError(f"{path} cannot be read ({error.strerror})", field="file") from error
    with file:
        head = file.readline(64)
        if not head.startswith(MAGIC):
            raise RecordError(f"{path} is not a backup")
        if head != MAGIC + b"%d\n" % FORMAT_VERSION:
            raise RecordError(f"{path} has format {head!r}, this program reads version {FORMAT_VERSION}: upgrade it")
        while True:
            start = file.read(_HEAD.size)
            if len(start) < _HEAD.size:
                raise RecordError(f"{path} ends early: it is damaged")
            length, checksum = _HEAD.unpack(start)
            payload = file.read(length) if length <= FRAME_BYTES_MAX else b""
            if len(payload) != length or crc32c.crc32c(payload) != checksum:
                raise RecordError(f"{path} fails a checksum before byte {file.tell()}: it is damaged")
            item = _item(payload)
            is_last = isinstance(item, BackupSummary)
            if is_last and file.read(1):
                raise RecordError(f"{path} goes on after its end: it is damaged")
            yield item
            if is_last:
                return


def _item(payload: bytes) -> BackupNode | BackupSummary:
    try:
        content = msgpack.unpackb(payload)
    except (ValueError, msgpack.UnpackException) as error:
        raise RecordError("the backup holds a malformed frame") from error
    match content:
        case [1, *rest]:
            return BackupNode.of(rest)
        case [2, summary]:
            try:
                return TypeAdapter(BackupSummary).validate_python(summary)
            except ValidationError as error:
                raise RecordError(f"the backup's summary is malformed: {error}") from error
    raise RecordError("the backup holds a frame of an unknown type")
