"""The requests to ZooKeeper as kazoo encodes them, the requests that kazoo lacks, and the translation of its errors and
stats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo import exceptions as kazoo
from kazoo.protocol.serialization import (
    CheckVersion,
    Exists,
    GetChildren2,
    GetData,
    MultiHeader,
    SetData,
    Transaction,
    read_string,
    write_string,
)
from kazoo.protocol.serialization import Create as CreateRequest
from kazoo.protocol.serialization import Delete as DeleteRequest

from heliograph.base.errors import HeliographError, NotPermittedError, QuotaExceededError, UnsupportedError
from heliograph.metadata.errors import (
    BadVersionError,
    ConnectionLossError,
    InvalidPathError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import ANY_VERSION, Check, Create, Delete, EventType, Operation, Reap, Set, Stat
from heliograph.metadata.znode import ttl_ms_of

EVENTS = {1: EventType.CREATED, 2: EventType.DELETED, 3: EventType.CHANGED, 4: EventType.CHILD}

_EPHEMERAL = 1
_SEQUENCE = 2
_PERSISTENT_RECURSIVE = 1
_ANY_WATCHER = 3
_VERSION_MAX = (1 << 31) - 1
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_STAT_BYTES = 68
_CREATE2, _CREATE_CONTAINER, _CREATE_TTL, _ERROR = 15, 19, 21, -1
_CONTAINER_FLAG, _TTL_FLAG, _TTL_SEQUENCE_FLAG = 4, 5, 6
_WATCHED = object()  # kazoo only looks whether there is a watcher; the watch table has the real ones

_ERRORS: tuple[tuple[type[Exception], type[HeliographError]], ...] = (
    (kazoo.NoNodeError, NoNodeError),
    (kazoo.NodeExistsError, NodeExistsError),
    (kazoo.BadVersionError, BadVersionError),
    (kazoo.NotEmptyError, NotEmptyError),
    (kazoo.NoChildrenForEphemeralsError, NoChildrenForEphemeralsError),
    (kazoo.BadArgumentsError, InvalidPathError),
    (kazoo.ConnectionClosedError, ConnectionLossError),  # before its base, SessionExpiredError
    (kazoo.SessionExpiredError, SessionExpiredError),
    (kazoo.NoAuthError, NotPermittedError),
    (kazoo.AuthFailedError, NotPermittedError),
    (kazoo.InvalidACLError, NotPermittedError),
    (kazoo.UnimplementedError, UnsupportedError),
    (kazoo.QuotaExceededError, QuotaExceededError),
    (kazoo.ConnectionLoss, ConnectionLossError),
    (kazoo.OperationTimeoutError, ConnectionLossError),
    (kazoo.RequestTimeoutError, ConnectionLossError),
    (kazoo.SessionMovedError, ConnectionLossError),
    (kazoo.ThrottledOpError, ConnectionLossError),
)


@dataclass(frozen=True, slots=True)
class KazooAddWatch:
    """The request that sets a persistent recursive watch (ZooKeeper 3.6 and later)."""

    type: ClassVar[int] = 106
    path: str

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _INT.pack(_PERSISTENT_RECURSIVE)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        """Return True: the answer has no body."""
        return True


@dataclass(frozen=True, slots=True)
class CreateOfKind:
    """The request that creates a container, or a node with a time to live if the server allows that."""

    path: str
    value: bytes | None
    acl: Sequence[Any]
    kind: int
    sequence: bool

    @property
    def type(self) -> int:
        return _CREATE_TTL if ttl_ms_of(self.kind) else _CREATE_CONTAINER

    def serialize(self) -> bytes:
        ttl_ms = ttl_ms_of(self.kind)
        if not ttl_ms:
            flags = _SEQUENCE if self.sequence else _CONTAINER_FLAG
            return bytes(CreateRequest(self.path, self.value, self.acl, flags).serialize())
        flags = _TTL_SEQUENCE_FLAG if self.sequence else _TTL_FLAG
        return bytes(CreateRequest(self.path, self.value, self.acl, flags).serialize()) + _LONG.pack(ttl_ms)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> str:
        """Return the path in the answer; the stat after it is not needed."""
        return str(read_string(data, offset)[0])


class KazooMulti(Transaction):  # type: ignore[misc]
    """kazoo's transaction, which also reads the answers to ``CreateOfKind``."""

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """Return the result of each operation, or its error."""
        results: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            result: Any = True
            if header.type in (CreateRequest.type, _CREATE2):
                result, offset = read_string(data, offset)
                offset += _STAT_BYTES if header.type == _CREATE2 else 0
            elif header.type == SetData.type:
                result = SetData.deserialize(data, offset)
                offset += _STAT_BYTES
            elif header.type == _ERROR:
                result = kazoo.EXCEPTIONS[_INT.unpack_from(data, offset)[0]]()
                offset += _INT.size
            results.append(result)
            header, offset = MultiHeader.deserialize(data, offset)
        return results


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    """The request that removes every watch that the session has on exactly this path."""

    type: ClassVar[int] = 18
    path: str

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _INT.pack(_ANY_WATCHER)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        """Return True: the answer has no body."""
        return True


def read(kind: WatchKind, path: str, *, watched: bool) -> Any:
    """Return a request that reads the data that a watch of ``kind`` compares, and sets the watch if ``watched``."""
    if kind is WatchKind.RECURSIVE:
        return KazooAddWatch(path)
    request = GetChildren2 if kind is WatchKind.CHILD else Exists
    return request(path, _WATCHED if watched else None)


def get(path: str, *, watched: bool) -> Any:
    return GetData(path, _WATCHED if watched else None)


def write(operation: Operation, acl: Sequence[Any]) -> Any:
    match operation:
        case Create(path, value, _, sequence, kind) if kind:
            return CreateOfKind(path, value, acl, kind, sequence)
        case Create(path, value, ephemeral, sequence):
            flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENCE if sequence else 0)
            return CreateRequest(path, value, acl, flags)
        case Set(path, value, version):
            return SetData(path, value, _sent(version))
        case Delete(path, version):
            return DeleteRequest(path, _sent(version))
        case Check(path, version):
            return CheckVersion(path, _sent(version))
        case Reap():
            raise AssertionError("the caller refuses it")


def _sent(version: int) -> int:
    """Return the version to compare. A version that the protocol cannot express matches no node, like any below
    ANY_VERSION."""
    return version if ANY_VERSION <= version <= _VERSION_MAX else ANY_VERSION - 1


def transaction(operations: Sequence[Operation], acl: Sequence[Any]) -> Any:
    return KazooMulti([write(operation, acl) for operation in operations])


def results_of(operations: Sequence[Operation], answers: Sequence[Any]) -> list[str | Stat | None]:
    """Return the results in the answer to a transaction.

    Raises:
        MetadataError: the error of the operation that could not be done, with its ``operation_index``.
    """
    for index, answer in enumerate(answers):
        # The operations before the failed one are answered with "rolled back", those after it with "inconsistency".
        if isinstance(answer, Exception) and not isinstance(answer, kazoo.RolledBackError | kazoo.RuntimeInconsistency):
            error = translated(answer, operations[index].path)
            if isinstance(error, MetadataError):
                error.operation_index = index
            raise error
    return [result_of(operation, answer) for operation, answer in zip(operations, answers, strict=True)]


def result_of(operation: Operation, answer: Any) -> str | Stat | None:
    if isinstance(operation, Create):
        return str(answer)
    return stat_of(answer) if isinstance(operation, Set) else None


def stat_of(stat: Any) -> Stat:
    """Return ZooKeeper's stat as a ``Stat``."""
    return Stat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        version=stat.version,
        cversion=stat.cversion,
        ephemeral_owner=stat.ephemeralOwner,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
        pzxid=stat.pzxid,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
    )


def translated(error: BaseException, what: str) -> HeliographError:
    """Return the error of this project for one of kazoo's. ``what`` names the path, for the message."""
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"{what}: ZooKeeper answered {type(error).__name__}")
    return MetadataError(f"{what}: ZooKeeper failed with {type(error).__name__} {error}".rstrip())
