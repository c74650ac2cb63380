"""Frames of the bookie protocol as pure functions: bytes <-> header and body (docs/formats.md, "Bookie protocol").

    offset  size  field
    0       4     length of all that follows
    4       2     length of the header
    6       4     CRC32C of the header
    10      -     header, a msgpack array (the fields of ``BookieRequest`` or ``Answer`` of ``messages``)
    -       -     body, raw bytes with a checksum of their own

These functions run for every entry, so they avoid copies: a decoded body is a view into the bytes that were fed, and
the ``_head`` variants return the frame up to the body, which the caller writes after it.
"""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import msgpack

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.messages import NUMBER_MAX, Answer, BookieOp, BookieRequest, Flag, Status

ENTRY_PAYLOAD_BYTES_MAX = 5 << 20  # default of the cluster's message limit
FRAME_SLACK_BYTES = 8 << 10  # frame head, header and error text
FRAME_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX + (64 << 10) + FRAME_SLACK_BYTES
HEADER_BYTES_MAX = 4 << 10
TEXT_CHARACTERS_MAX = 512  # an answer's text is cut here

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IHI")
_AFTER_LENGTH_BYTES = _HEAD.size - _LENGTH.size
_BATCH_LENGTH = _LENGTH
_OPS = {int(op): op for op in BookieOp}
_STATUSES = {int(status): status for status in Status}
_FLAGS = {value: Flag(value) for value in range(2 * max(Flag))}

_pack = msgpack.Packer(autoreset=True).pack
_unpack = msgpack.unpackb
_crc = crc32c.crc32c

assert 4 * TEXT_CHARACTERS_MAX < HEADER_BYTES_MAX < FRAME_SLACK_BYTES  # I15: a header always fits


def encode_request_head(request: BookieRequest, body_bytes: int = 0) -> bytes:
    """Return a request's frame up to its body, which has ``body_bytes`` bytes and must be written right after."""
    return encode_head(
        [
            int(request.op),
            request.request_id,
            request.ledger_id,
            request.entry_id,
            int(request.flags),
            request.limit,
            request.last_entry_id,
        ],
        body_bytes,
    )


def encode_request(request: BookieRequest, body: bytes | memoryview = b"") -> bytes:
    head = encode_request_head(request, len(body))
    return b"".join((head, body)) if body else head


def encode_answer_head(answer: Answer, body_bytes: int = 0) -> bytes:
    """Return an answer's frame up to its body, which has ``body_bytes`` bytes and must be written right after."""
    text = answer.text[:TEXT_CHARACTERS_MAX]
    return encode_head([answer.request_id, int(answer.status), answer.last_add_confirmed, text], body_bytes)


def encode_answer(answer: Answer, body: bytes | memoryview = b"") -> bytes:
    head = encode_answer_head(answer, len(body))
    return b"".join((head, body)) if body else head


def encode_head(header: list[Any], body_bytes: int) -> bytes:
    """Return the frame of a header given as a list, up to its body."""
    packed = _pack(header)
    length = _AFTER_LENGTH_BYTES + len(packed) + body_bytes
    assert length <= FRAME_BYTES_MAX, "a frame above the limit would be refused by the peer"  # I15
    return _HEAD.pack(length, len(packed), _crc(packed)) + packed  # type: ignore[no-any-return]


def decode_request(header: list[Any]) -> BookieRequest:
    """Return the request in a header that ``BookieFrameDecoder`` returned.

    The types are exact; the caller checks the ranges of ids and limits.

    Raises:
        FrameError: unknown operation, wrong number of fields, or a field of another type.
    """
    try:
        op, request_id, ledger_id, entry_id, flags, limit, last_entry_id = header
        if all(map(_is_int, header)) and 0 <= request_id <= NUMBER_MAX:
            return BookieRequest(_OPS[op], request_id, ledger_id, entry_id, _FLAGS[flags], limit, last_entry_id)
    except (ValueError, KeyError, TypeError):
        pass
    raise FrameError(request_fault(header))


def request_fault(header: list[Any]) -> str:
    """Return the fault in the header of a request that ``decode_request`` refuses."""
    op = header[0] if header else None
    name = _OPS[op].name if _is_int(op) and op in _OPS else "a request"
    if len(header) != len(BookieRequest._fields):
        return f"{name} has {len(header)} fields instead of {len(BookieRequest._fields)}"
    for field, value in zip(BookieRequest._fields, header, strict=True):
        if not _is_int(value):
            return f"{name} has {field} {value!r:.60}, an integer is required"
    if op not in _OPS:
        return f"{name} has op {op}, which is unknown"
    fields = dict(zip(BookieRequest._fields, header, strict=True))
    if not 0 <= fields["request_id"] <= NUMBER_MAX:
        return f"{name} has request_id {fields['request_id']}, from 0 to 2**63 - 1 is required"
    return f"{name} has flags {fields['flags']}, from 0 to {max(_FLAGS)} is required"


def decode_answer(header: list[Any]) -> Answer:
    """Return the answer in a header that ``BookieFrameDecoder`` returned.

    Raises:
        FrameError: unknown status, wrong number of fields, a field of another type, or a LAC out of range.
    """
    try:
        request_id, status, last_add_confirmed, text = header
        if not (type(request_id) is type(status) is type(last_add_confirmed) is int and type(text) is str):
            raise FrameError(f"an answer has a field of a wrong type: {header!r:.200}")
        if not -1 <= last_add_confirmed <= NUMBER_MAX:
            raise FrameError(f"an answer has LAC {last_add_confirmed}, from -1 to 2**63 - 1 is required")
        return Answer(request_id, _STATUSES[status], last_add_confirmed, text)
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"not an answer: {header!r:.200}") from error


def _is_int(value: object) -> bool:
    return type(value) is int


def encode_batch(entries: list[bytes | memoryview]) -> bytes:
    """Return the body of a READ_BATCH answer: entries, each after its u32 length."""
    parts: list[bytes | memoryview] = []
    for entry in entries:
        parts.append(_BATCH_LENGTH.pack(len(entry)))
        parts.append(entry)
    return b"".join(parts)


def decode_batch(body: bytes | memoryview) -> list[memoryview]:
    """Return the entries in the body of a READ_BATCH answer, as views into it.

    Raises:
        FrameError: the lengths do not add up.
    """
    view = memoryview(body)
    entries: list[memoryview] = []
    position, end = 0, len(view)
    while position < end:
        if end - position < _BATCH_LENGTH.size:
            raise FrameError("a batch of entries ends inside a length")
        (length,) = _BATCH_LENGTH.unpack_from(view, position)
        position += _BATCH_LENGTH.size
        if length > end - position:
            raise FrameError(f"a batch of entries ends {length - (end - position)} bytes early")
        entries.append(view[position : position + length])
        position += length
    return entries


class BookieFrameDecoder:
    """Splits a stream of bytes into frames. After a FrameError the connection must be closed.

    Bodies are views into the bytes fed, which live as long as the views: copy what is kept for long. At most one frame
    (``frame_bytes_max``) and one chunk are held between calls (I15).
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = 0

    def feed(self, data: bytes) -> list[tuple[list[Any], memoryview]]:
        """Return header and body of every frame that ``data`` completes, in order.

        Raises:
            FrameError: a frame above the limit, or a damaged header.
        """
        if self._chunks:
            self._chunks.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._wanted_bytes:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        frames, position, wanted = cut_frames(memoryview(data), self._frame_bytes_max)
        if position < len(data):
            self._chunks.append(data[position:] if position else data)
            self._held_bytes = len(data) - position
            self._wanted_bytes = wanted
        return frames


def cut_frames(
    view: memoryview, frame_bytes_max: int, first_bytes_max: int = 0
) -> tuple[list[tuple[list[Any], memoryview]], int, int]:
    """Return header and body of every whole frame in ``view``, the position after the last of them, and the number of
    bytes known to be needed from there for the next frame.

    Args:
        first_bytes_max: limit of the first frame, if it is another.

    Raises:
        FrameError: a frame above the limit, or a damaged header.
    """
    frames: list[tuple[list[Any], memoryview]] = []
    position, end = 0, len(view)
    wanted = _HEAD.size
    limit = first_bytes_max or frame_bytes_max
    while end - position >= _HEAD.size:
        length, header_bytes, checksum = _HEAD.unpack_from(view, position)
        if length > limit or length < _AFTER_LENGTH_BYTES + header_bytes:
            raise FrameError(f"a frame of {length} bytes; the limit is {limit} bytes")
        if header_bytes > HEADER_BYTES_MAX:
            raise FrameError(f"a frame has a header of {header_bytes} bytes; the limit is {HEADER_BYTES_MAX} bytes")
        frame_end = position + _LENGTH.size + length
        if frame_end > end:
            wanted = frame_end - position
            break
        body_start = position + _HEAD.size + header_bytes
        packed = view[position + _HEAD.size : body_start]
        if _crc(packed) != checksum:
            raise FrameError("a frame's header fails its checksum")
        try:
            header = _unpack(packed)
        except (ValueError, msgpack.UnpackException) as error:
            raise FrameError("the header of a frame is not a msgpack array") from error
        if type(header) is not list:
            raise FrameError("the header of a frame is not a msgpack array")
        frames.append((header, view[body_start:frame_end]))
        position = frame_end
        limit = frame_bytes_max
    return frames, position, wanted
