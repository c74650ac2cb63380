"""The protocol of the embedded server and its clients; the byte map is in docs/formats-metadata.md. No I/O.

A frame is a u32 (big endian) length and that many bytes of msgpack: one array. Clients send ``[request id, op,
arguments...]``; the server answers ``[request id, code, result]`` and sends notices ``[0, notice, ...]``.

The version in a greeting is that of the protocol in its low byte, and above it the number of the client's release. A
server that predates release numbers refuses such a version; the client then sends the protocol's version alone.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from heliograph.base.errors import AuthenticationError, BadRequestError, HeliographError, VersionMismatchError
from heliograph.base.version import Release, own_release, release_numbered
from heliograph.metadata.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataProtocolError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RecordError,
    SessionExpiredError,
    ValueTooLargeError,
)
from heliograph.metadata.store import Check, Create, Delete, EventType, Operation, Reap, Set, Stat, WatchEvent
from heliograph.metadata.znode import parent_of

MAGIC = "heliograph.metadata"
PROTOCOL_VERSION = 1
SERVER_NAME = "metadata"  # in proofs of the secret
FRAME_BYTES_MAX = 8 << 20  # of one frame without its length
ANSWER_BYTES_MAX = 56 << 20  # of an answer in several frames, which a server holds until its client has read it
GREETING_BYTES_MAX = 8 << 10  # the same, of a client that has no session yet

_LENGTH = struct.Struct(">I")


class EmbeddedOp(enum.IntEnum):
    """The kinds of requests; the arguments follow in the frame."""

    # magic, version, timeout ms, session id or 0, password -> [session id, password, timeout ms, and the number of the
    # server's release to a client that says its own]
    HELLO = 1
    PING = 2
    APPLY = 3  # operations -> results
    GET = 4  # path, watch id or 0 -> [value, stat]
    EXISTS = 5  # path, watch id or 0 -> stat or nil
    CHILDREN = 6  # path, watch id or 0 -> [names, stat]
    WATCH = 7  # path, watch id: recursive
    UNWATCH = 8  # watch id
    RESET_WATCHES = 9  # [[watch id, kind, path, czxid, mzxid or pzxid]...]
    SYNC = 10  # path
    END_SESSION = 11  # session id, password
    CLOSE = 12
    REAPABLE = 13  # count -> paths
    CHALLENGE = 15  # magic, version, nonce -> challenge (heliograph/base/guard/handshake.py)
    PROVE = 16  # proof -> nil
    CHILDREN_FROM = 17  # path, first name, count -> names; of servers that say their release
    RESUME = 14  # magic, version, session id, password, owner, whether to take over -> as HELLO


class Notice(enum.IntEnum):
    """The kinds of notices: frames that a server sends without a request."""

    EVENT = 1  # watch id, event type, path
    SESSION_ENDED = 2
    PART = 3  # bytes of the answer that the next frames go on with
    LAST_PART = 4  # bytes: those of all parts are the answer


PART_BYTES = 4 << 20
_PARTS = (Notice.PART, Notice.LAST_PART)


class _Kind(enum.IntEnum):
    CREATE = 1
    SET = 2
    DELETE = 3
    CHECK = 4
    REAP = 5


OK = 0
VERSION_FIELD = "protocol version"  # of the error that refuses one
_RELEASE_SHIFT = 8
_ERRORS: dict[int, type[HeliographError]] = {
    1: NoNodeError,
    2: NodeExistsError,
    3: BadVersionError,
    4: NotEmptyError,
    5: NoChildrenForEphemeralsError,
    6: InvalidPathError,
    7: ValueTooLargeError,
    8: SessionExpiredError,
    9: BadRequestError,
    10: MetadataProtocolError,
    11: AuthenticationError,
    12: VersionMismatchError,
    13: RecordError,  # of the store's own
}
_CODES = {kind: code for code, kind in _ERRORS.items()}
_EVENT_CODES = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3, EventType.CHILD: 4}
_EVENTS = {code: kind for kind, code in _EVENT_CODES.items()}


class EmbeddedFrameDecoder:
    """Cuts a stream of bytes into frames of at most ``frame_bytes_max``.

    Args:
        joins_answers: join the frames of a large answer, which only a server sends.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, *, joins_answers: bool = False) -> None:
        self._joins_answers = joins_answers
        self.frame_bytes_max = frame_bytes_max
        self._parts: list[bytes] = []
        self._buffer = bytearray()
        self._wanted = _LENGTH.size  # bytes, from the begin of the buffer

    @property
    def buffered(self) -> int:
        """The number of buffered bytes of the incomplete frame."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """The number of bytes that the incomplete frame is known to lack."""
        return self._wanted - len(self._buffer)

    def clear(self) -> None:
        """Free the buffered bytes. The stream cannot be read any further."""
        self._buffer = bytearray()
        self._parts.clear()

    def feed(self, data: bytes) -> list[list[Any]]:
        """Return the frames that ``data`` completes.

        Raises:
            MetadataProtocolError: the stream is not this protocol; it cannot be read any further.
        """
        buffer = self._buffer
        buffer += data
        frames: list[list[Any]] = []
        start, self._wanted = 0, _LENGTH.size
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self.frame_bytes_max:
                raise MetadataProtocolError(f"a frame of {length} bytes is above the limit of {self.frame_bytes_max}")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                self._wanted = end - start
                break
            frame = _unpack(bytes(buffer[start + _LENGTH.size : end]))
            start = end
            if frame[0] or frame[1] not in _PARTS or not self._joins_answers:
                frames.append(frame)
            elif (whole := self._joined(frame)) is not None:
                frames.append(whole)
        del buffer[:start]
        return frames

    def _joined(self, frame: list[Any]) -> list[Any] | None:
        """Keep a part of an answer; return the answer with its last part."""
        if len(frame) != 3 or not isinstance(frame[2], bytes):
            raise MetadataProtocolError("a part of an answer is not bytes")
        self._parts.append(frame[2])
        if sum(map(len, self._parts)) > ANSWER_BYTES_MAX:
            raise MetadataProtocolError(f"an answer is above the limit of {ANSWER_BYTES_MAX} bytes")
        if frame[1] == Notice.PART:
            return None
        parts, self._parts = self._parts, []
        return _unpack(b"".join(parts))


def encode_answer(items: Sequence[Any], *, joins_answers: bool) -> bytes:
    """Return an answer in one frame, or in several if it is larger.

    Args:
        joins_answers: whether the client joins frames; clients that predate release numbers do not.

    Raises:
        ValueTooLargeError: it would be above ANSWER_BYTES_MAX, or above the one frame that the client reads.
    """
    return _answer_frames(msgpack.packb(items, unicode_errors="surrogatepass"), joins_answers=joins_answers)


def encode_names(names: Sequence[str]) -> bytes:
    """Return a piece of the list of an answer, for ``encode_listing``."""
    packer = msgpack.Packer(unicode_errors="surrogatepass")
    return b"".join(map(packer.pack, names))


def encode_listing(request_id: int, pieces: Sequence[bytes], count: int, stat: Stat, *, joins_answers: bool) -> bytes:
    """Return the answer to a request for all children, made of pieces with ``count`` names. See ``encode_answer``."""
    packer = msgpack.Packer()
    head = (packer.pack_array_header(3), packer.pack(request_id), packer.pack(OK), packer.pack_array_header(2))
    body = b"".join((*head, packer.pack_array_header(count), *pieces, packer.pack(encode_stat(stat))))
    return _answer_frames(body, joins_answers=joins_answers)


def _answer_frames(body: bytes, *, joins_answers: bool) -> bytes:
    if len(body) <= FRAME_BYTES_MAX:
        return _LENGTH.pack(len(body)) + body
    most = ANSWER_BYTES_MAX if joins_answers else FRAME_BYTES_MAX
    if len(body) > most:
        why = "the limit" if joins_answers else "the versions that a client of this release reads: upgrade it"
        raise ValueTooLargeError(f"an answer of {len(body)} bytes is above {why}", limit=f"{most} bytes")
    starts = range(0, len(body), PART_BYTES)
    kinds = [Notice.PART] * (len(starts) - 1) + [Notice.LAST_PART]
    return b"".join(
        encode_frame([0, kind, body[start : start + PART_BYTES]]) for kind, start in zip(kinds, starts, strict=True)
    )


def encode_frame(items: Sequence[Any]) -> bytes:
    """Return one frame.

    Raises:
        ValueTooLargeError: it would be above FRAME_BYTES_MAX.
    """
    body: bytes = msgpack.packb(items, unicode_errors="surrogatepass")
    if len(body) > FRAME_BYTES_MAX:
        raise ValueTooLargeError(
            f"a frame of {len(body)} bytes is above the limit of {FRAME_BYTES_MAX}", limit=f"{FRAME_BYTES_MAX} bytes"
        )
    return _LENGTH.pack(len(body)) + body


def greeting_version(*, with_release: bool) -> int:
    """Return the version that a client sends in its greeting."""
    return PROTOCOL_VERSION | (own_release().number << _RELEASE_SHIFT if with_release else 0)


def split_version(version: int) -> tuple[int, Release]:
    """Split the version of a greeting into the protocol's version and the client's release."""
    return version & (1 << _RELEASE_SHIFT) - 1, release_numbered(version >> _RELEASE_SHIFT)


def says_release(version: int) -> bool:
    return version >> _RELEASE_SHIFT > 0


def encode_error(request_id: int, error: HeliographError) -> bytes:
    """Encode the answer for an error of the table."""
    index = getattr(error, "operation_index", None)
    return encode_frame([request_id, _CODES[type(error)], [str(error), error.field, error.limit, index]])


def decode_error(code: int, details: Any) -> HeliographError:
    """Return the error in an answer whose code is not OK."""
    kind = _ERRORS.get(code)
    try:
        message, field, limit, index = details
        check_arguments([message], (str,))
    except (TypeError, ValueError, MetadataProtocolError):
        kind = None
    if kind is None:
        return MetadataProtocolError(f"the server answered with unknown error {code}: {details!r:.200}")
    error = kind(message, field=field, limit=limit)
    if index is not None:
        error.operation_index = index  # type: ignore[attr-defined]
    return error


def encode_operation(operation: Operation) -> list[Any]:
    match operation:
        case Create(path, value, ephemeral, sequence, 0):
            return [_Kind.CREATE, path, value, ephemeral, sequence]
        case Create(path, value, ephemeral, sequence, kind):
            return [_Kind.CREATE, path, value, ephemeral, sequence, kind]
        case Set(path, value, version):
            return [_Kind.SET, path, value, version]
        case Delete(path, version):
            return [_Kind.DELETE, path, version]
        case Check(path, version):
            return [_Kind.CHECK, path, version]
        case Reap(path):
            return [_Kind.REAP, path]


_STAT = (int,) * 10
_KIND_AT = 5  # in the items of a create
VALUE = (bytes, type(None))
_BUILDERS: dict[int, tuple[type[Operation], tuple[type | tuple[type, ...], ...]]] = {
    _Kind.CREATE: (Create, (str, VALUE, bool, bool)),
    _Kind.SET: (Set, (str, VALUE, int)),
    _Kind.DELETE: (Delete, (str, int)),
    _Kind.CHECK: (Check, (str, int)),
    _Kind.REAP: (Reap, (str,)),
}


def decode_operation(items: Any) -> Operation:
    """Decode the items that ``encode_operation`` made.

    Raises:
        MetadataProtocolError: the items are no operation.
    """
    if not isinstance(items, list) or not items or type(items[0]) is not int or items[0] not in _BUILDERS:
        raise MetadataProtocolError(f"{items!r:.200} is not an operation")
    kind, types = _BUILDERS[items[0]]
    if kind is Create and len(items) == _KIND_AT + 1:  # a container, or a node with a time to live
        types = (*types, int)
    check_arguments(items[1:], types)
    return kind(*items[1:])


def check_arguments(arguments: Any, types: Sequence[type | tuple[type, ...]]) -> None:
    """Raise MetadataProtocolError unless these are arguments of exactly these types; a tuple allows several."""
    if not isinstance(arguments, list | tuple):
        raise MetadataProtocolError(f"{arguments!r:.200} is no list of arguments")
    if len(arguments) == len(types):
        for argument, kinds in zip(arguments, types, strict=True):  # a loop: each message of the protocol comes here
            if type(argument) is not kinds and not (type(kinds) is tuple and type(argument) in kinds):
                break
        else:
            return
    wanted = ["/".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))) for kinds in types]
    raise MetadataProtocolError(f"arguments {[type(a).__name__ for a in arguments]} do not fit {wanted}")


def encode_stat(stat: Stat) -> list[int]:
    return [
        stat.czxid, stat.mzxid, stat.version, stat.cversion, stat.ephemeral_owner, stat.data_length,
        stat.num_children, stat.pzxid, stat.created_ms, stat.modified_ms,
    ]  # fmt: skip


def decode_stat(items: Any) -> Stat:
    """Decode the items that ``encode_stat`` made.

    Raises:
        MetadataProtocolError: the items are no stat.
    """
    check_arguments(items, _STAT)
    return Stat(*items)


def event_code(kind: EventType) -> int:
    return _EVENT_CODES[kind]


def decode_event(items: Any) -> tuple[int, WatchEvent]:
    """Return watch id and event of the notice EVENT.

    Raises:
        MetadataProtocolError: the items are no event.
    """
    check_arguments(items, (int, int, str))
    watch_id, code, path = items
    if code not in _EVENTS:
        raise MetadataProtocolError(f"unknown type of event {code}")
    return watch_id, WatchEvent(_EVENTS[code], path)


def watched_path(item: Any) -> str:
    """Return the path of a watch in RESET_WATCHES.

    Raises:
        MetadataProtocolError: the items are no watch.
    """
    check_arguments(item, (int, int, str, int, int))
    path: str = item[2]
    return path


# The requests that need nodes that their arguments name, and the paths of these.
NEEDS: dict[int, Callable[[list[Any]], list[str]]] = {
    EmbeddedOp.APPLY: lambda arguments: [
        path for item in arguments[0] for path in (decode_operation(item).path, parent_of(decode_operation(item).path))
    ],
    EmbeddedOp.GET: lambda arguments: [arguments[0]],
    EmbeddedOp.EXISTS: lambda arguments: [arguments[0]],
    EmbeddedOp.CHILDREN: lambda arguments: [arguments[0]],
    EmbeddedOp.CHILDREN_FROM: lambda arguments: [arguments[0]],
    EmbeddedOp.RESET_WATCHES: lambda arguments: [watched_path(item) for item in arguments[0]],
}


def _unpack(body: bytes) -> list[Any]:
    try:
        items = msgpack.unpackb(body, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException) as error:
        raise MetadataProtocolError(f"a frame is not msgpack: {error}") from error
    if not isinstance(items, list) or len(items) < 2 or type(items[0]) is not int or type(items[1]) is not int:
        raise MetadataProtocolError("a frame is not an array that begins with two numbers")
    return items
