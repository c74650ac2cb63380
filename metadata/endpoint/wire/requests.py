"""The requests of clients as records, and their decoding from frames. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from heliograph.metadata.endpoint.limits import ACL_ENTRIES_MAX
from heliograph.metadata.endpoint.wire.acl import AclEntry
from heliograph.metadata.endpoint.wire.codes import AddWatchMode, OpCode, WatcherType
from heliograph.metadata.endpoint.wire.jute import JuteReader
from heliograph.metadata.errors import MetadataProtocolError

K = TypeVar("K", bound=enum.IntEnum)


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The first frame of a connection. ``session_id`` 0 asks for a new session; 3.4+ clients set ``has_read_only``."""

    protocol: int
    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes
    has_read_only: bool


@dataclass(frozen=True, slots=True)
class Nothing:
    """The body of an operation without arguments, or of one that is not supported."""


@dataclass(frozen=True, slots=True)
class OnPath:
    """The body of getACL, sync, getEphemerals and getAllChildrenNumber."""

    path: str


@dataclass(frozen=True, slots=True)
class Read:
    """The body of exists, getData, getChildren and getChildren2."""

    path: str
    watch: bool


@dataclass(frozen=True, slots=True)
class VersionedRequest:
    """The body of delete and check."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class CreateNode:
    """The body of create, create2, createContainer and createTTL; only the last has a time to live."""

    path: str
    value: bytes | None
    acl: tuple[AclEntry, ...]
    flags: int
    ttl_ms: int = -1


@dataclass(frozen=True, slots=True)
class SetData:
    """The body of setData."""

    path: str
    value: bytes | None
    version: int


@dataclass(frozen=True, slots=True)
class SetAcl:
    """The body of setACL; ``version`` is that of the ACL."""

    path: str
    acl: tuple[AclEntry, ...]
    version: int


@dataclass(frozen=True, slots=True)
class SetAuth:
    """The body of setAuth: an identity of the client."""

    scheme: str
    credential: bytes


@dataclass(frozen=True, slots=True)
class SetWatches:
    """The watches that a client had on an earlier connection; ``zxid`` is the newest change that it has seen."""

    zxid: int
    data: list[str]
    exist: list[str]
    child: list[str]
    persistent: list[str]
    recursive: list[str]


@dataclass(frozen=True, slots=True)
class AddWatch:
    """The body of addWatch."""

    path: str
    mode: AddWatchMode


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """The body of checkWatches and removeWatches."""

    path: str
    type: WatcherType


@dataclass(frozen=True, slots=True)
class Multi:
    """The body of multi and multiRead."""

    operations: list[tuple[OpCode, Body]]


Body = (
    Nothing | OnPath | Read | VersionedRequest | CreateNode | SetData | SetAcl | SetAuth | SetWatches | AddWatch
    | WatchQuery | Multi
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request. ``op`` is None for an unknown operation; ``body`` is None when its arguments are malformed."""

    xid: int
    op: OpCode | None
    body: Body | None
    size: int  # bytes of its frame


def decode_connect(frame: bytes) -> ConnectRequest:
    """Return the request in the first frame of a connection.

    Raises:
        MetadataProtocolError: the frame is malformed.
    """
    reader = JuteReader(frame)
    protocol, last_zxid, timeout_ms, session_id = reader.int32(), reader.int64(), reader.int32(), reader.int64()
    return ConnectRequest(protocol, last_zxid, timeout_ms, session_id, reader.buffer(), reader.remaining > 0)


def decode_request(frame: bytes) -> EndpointRequest:
    """Return the request in any later frame.

    Raises:
        MetadataProtocolError: the frame has no complete header.
    """
    reader = JuteReader(frame)
    xid, number = reader.int32(), reader.int32()
    try:
        op = OpCode(number)
    except ValueError:
        return EndpointRequest(xid, None, Nothing(), len(frame))
    try:
        return EndpointRequest(xid, op, _decode_body(op, reader), len(frame))
    except MetadataProtocolError:
        return EndpointRequest(xid, op, None, len(frame))


def _decode_body(op: OpCode, reader: JuteReader) -> Body:
    decode = _BODIES.get(op)
    return decode(reader) if decode is not None else Nothing()


def _acl(reader: JuteReader) -> tuple[AclEntry, ...]:
    entries = reader.vector(lambda r: AclEntry(r.int32(), r.string(), r.string()), item_bytes_min=12)
    if len(entries) > ACL_ENTRIES_MAX:
        raise MetadataProtocolError(f"an ACL of {len(entries)} entries is above the limit of {ACL_ENTRIES_MAX}")
    return tuple(entries)


def _one_of(kinds: type[K], what: str, reader: JuteReader) -> K:
    number = reader.int32()
    if number not in kinds.__members__.values():
        raise MetadataProtocolError(f"unknown {what}: {number}")
    return kinds(number)


_IN_MULTI = {
    OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL, OpCode.DELETE, OpCode.SET_DATA,
    OpCode.CHECK, OpCode.GET_DATA, OpCode.GET_CHILDREN,
}  # fmt: skip


def _multi(reader: JuteReader) -> Multi:
    """Read operations, each after a header (int32 op, bool done, int32 error), up to a header that says done."""
    operations: list[tuple[OpCode, Body]] = []
    while True:
        number, done, _ = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return Multi(operations)
        if number not in _IN_MULTI:
            raise MetadataProtocolError(f"operation {number} cannot be part of a multi")
        op = OpCode(number)
        operations.append((op, _decode_body(op, reader)))


def _set_auth(reader: JuteReader) -> SetAuth:
    reader.int32()  # a type that has always been 0
    return SetAuth(reader.string(), reader.buffer())


_DECODERS: tuple[tuple[Callable[[JuteReader], Body], tuple[OpCode, ...]], ...] = (
    (
        lambda r: CreateNode(r.string(), r.nullable_buffer(), _acl(r), r.int32()),
        (OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER),
    ),
    (
        lambda r: CreateNode(r.string(), r.nullable_buffer(), _acl(r), r.int32(), r.int64()),
        (OpCode.CREATE_TTL,),
    ),
    (lambda r: VersionedRequest(r.string(), r.int32()), (OpCode.DELETE, OpCode.CHECK)),
    (
        lambda r: Read(r.string(), r.boolean()),
        (OpCode.EXISTS, OpCode.GET_DATA, OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2),
    ),
    (
        lambda r: OnPath(r.string()),
        (OpCode.GET_ACL, OpCode.SYNC, OpCode.GET_EPHEMERALS, OpCode.GET_ALL_CHILDREN_NUMBER),
    ),
    (lambda r: SetData(r.string(), r.nullable_buffer(), r.int32()), (OpCode.SET_DATA,)),
    (lambda r: SetAcl(r.string(), _acl(r), r.int32()), (OpCode.SET_ACL,)),
    (_multi, (OpCode.MULTI, OpCode.MULTI_READ)),
    (_set_auth, (OpCode.AUTH,)),
    (lambda r: SetWatches(r.int64(), r.strings(), r.strings(), r.strings(), [], []), (OpCode.SET_WATCHES,)),
    (lambda r: SetWatches(r.int64(), *(r.strings() for _ in range(5))), (OpCode.SET_WATCHES2,)),
    (lambda r: AddWatch(r.string(), _one_of(AddWatchMode, "mode of a watch", r)), (OpCode.ADD_WATCH,)),
    (
        lambda r: WatchQuery(r.string(), _one_of(WatcherType, "type of watches", r)),
        (OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES),
    ),
)
_BODIES = {op: decode for decode, ops in _DECODERS for op in ops}
