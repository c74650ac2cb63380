"""The messages of a batch as columns, without an object for each message where the format allows it. No I/O.

Three ways lead to the same columns (tests compare them). A batch whose messages all have one size and one form, as
sensors and most benchmarks write them, is a matrix of bytes: its columns are cut out of it at once. Otherwise the heads
of the messages are walked through, and those of the usual form (key, size, event time, sequence id) are read in place.
Whatever else is in a head is left to protobuf.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from heliograph.base.errors import ProtocolError
from heliograph.pipelines.reading.fields import key_of, ordering_key_of, properties_of
from heliograph.protocol.pulsar_pb2 import SingleMessageMetadata

UNIFORM_MESSAGES_MIN = 8  # in a batch: below it, building arrays costs more than walking

_KEY, _SIZE, _EVENT_TIME, _SEQUENCE_ID = 0x12, 0x18, 0x28, 0x40  # tags of SingleMessageMetadata
_OFFSET_MAX = (1 << 31) - 1  # bytes in one array
_U64 = (1 << 64) - 1
_VARINT_BYTES_MAX = 10
_MORE = 0x80  # set in every byte of a number but the last
_u32 = struct.Struct(">I").unpack_from

_Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Messages:
    """The messages of a batch that compaction left, as columns of equal length; a column that is None has only nulls.

    Attributes:
        indexes: in the batch.
        values: the payloads; null for a message without one.
        event_times: in ms; 0: none.
        properties: pairs of key and value, with each key once.
    """

    indexes: Sequence[int]
    values: list[bytes | None] | pa.Array
    keys: list[bytes | None] | pa.Array | None = None
    event_times: list[int] | npt.NDArray[np.uint64] | None = None
    properties: list[list[tuple[str, str]]] | None = None
    ordering_keys: list[bytes | None] | None = None


def batch_columns(plain: bytes, count: int) -> Messages:
    """Return the messages of a batch.

    Args:
        plain: the payload of its entry, decompressed.
        count: of messages, as its entry says.

    Raises:
        ProtocolError: the bytes are not so many messages.
    """
    if count >= UNIFORM_MESSAGES_MIN and (uniform := _uniform(plain, count)) is not None:
        return uniform
    return _Walk(plain, count).messages()


# ---------------------------------------------------------------- messages of one form


def _uniform(plain: bytes, count: int) -> Messages | None:
    """Return the columns of a batch whose messages all have the form and the sizes of the first; None for others."""
    stride, rest = divmod(len(plain), count)
    if rest or stride < 6:
        return None
    (length,) = _u32(plain)
    form = _Form.of(plain[4 : 4 + length])
    if form is None or 4 + length + form.payload_size != stride:
        return None
    matrix = np.frombuffer(plain, np.uint8).reshape(count, stride)
    heads = matrix[:, : 4 + length]
    if ((heads & form.fixed) != (heads[0] & form.fixed)).any():
        return None
    return Messages(
        range(count),
        _binary(matrix[:, 4 + length :]),
        keys=None if form.key is None else _binary(heads[:, form.key]),
        event_times=None if form.event_time is None else _numbers(heads[:, form.event_time]),
    )


@dataclass(slots=True)
class _Form:
    """Where the fields of a head are, and which of its bits are the same in all heads of this form."""

    fixed: _Bytes  # a mask over the four bytes of its length and the head
    payload_size: int = -1
    key: slice | None = None
    event_time: slice | None = None

    @staticmethod
    def of(head: bytes) -> _Form | None:
        """Return the form of a head; None if it has more than a key, a size, an event time and a sequence id."""
        form = _Form(np.full(4 + len(head), 0xFF, np.uint8))
        at, last_tag = 0, 0
        try:
            while at < len(head):
                tag = head[at]
                if tag <= last_tag:
                    return None  # a field that comes twice, or in an unusual order
                last_tag, at = tag, at + 1
                if tag == _KEY:
                    size = head[at]
                    at += 1
                    form.key = slice(4 + at, 4 + at + size)
                    if size & _MORE or at + size > len(head):
                        return None
                    form.fixed[form.key] = 0
                    at += size
                    continue
                end = at
                while head[end] & _MORE:
                    end += 1
                if end - at >= _VARINT_BYTES_MAX:
                    return None
                place = slice(4 + at, 4 + end + 1)
                if tag == _SIZE:
                    form.payload_size = _number(head[at : end + 1])
                elif tag in (_EVENT_TIME, _SEQUENCE_ID):
                    form.fixed[place] = _MORE
                    if tag == _EVENT_TIME:
                        form.event_time = place
                else:
                    return None
                at = end + 1
        except IndexError:
            return None
        return form if form.payload_size >= 0 else None


def _number(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


def _numbers(varints: _Bytes) -> npt.NDArray[np.uint64]:
    """Return the numbers in the rows of a matrix, all with the same count of bytes."""
    width = varints.shape[1]
    numbers = np.zeros(len(varints), np.uint64)
    for place in range(width):
        numbers |= (varints[:, place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return numbers


def _binary(rows: _Bytes) -> pa.Array:
    """Return the rows of a matrix as an array of byte strings."""
    count, width = rows.shape
    if count * width > _OFFSET_MAX:
        raise ProtocolError(f"a batch holds more than {_OFFSET_MAX} bytes", field="entry")
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


# ---------------------------------------------------------------- messages of any form


class _Walk:
    """One pass over the messages of a batch."""

    def __init__(self, plain: bytes, count: int) -> None:
        self._plain = plain
        self._kept: list[int] = []
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._event_times: list[int] = []
        self._others: dict[int, SingleMessageMetadata] = {}  # by row: heads that protobuf read
        self._packed, self._parsed = b"", SingleMessageMetadata()  # messages in a row often have equal heads
        try:
            self._walk(count)
        except (struct.error, IndexError, DecodeError) as error:
            raise ProtocolError(f"a batch cannot be read: {error}", field="entry") from error

    def _walk(self, count: int) -> None:
        plain, position, total = self._plain, 0, len(self._plain)
        values, keys, event_times = self._values.append, self._keys.append, self._event_times.append
        for index in range(count):
            (length,) = _u32(plain, position)
            at = position + 4
            end = at + length
            key, event_time = None, 0
            if plain[at] == _KEY and plain[at + 1] < _MORE:
                start = at + 2
                at = start + plain[at + 1]
                key = plain[start:at]
            size = -1
            if at < end and plain[at] == _SIZE:
                size = plain[at + 1]
                at += 2
                if size & _MORE:
                    size = size & 0x7F | plain[at] << 7
                    at += 1
                    if size & _MORE << 7:
                        size = -1  # of 16 KiB or more: reading its head costs nothing beside it
            if at != end and size >= 0:
                if at < end and plain[at] == _EVENT_TIME:
                    at, event_time = _varint(plain, at + 1)
                if at < end and plain[at] == _SEQUENCE_ID:
                    at += 1
                    while plain[at] & _MORE:
                        at += 1
                    at += 1
            if at != end or size < 0:
                single = self._parse(plain[position + 4 : end])
                size = single.payload_size
                if single.compacted_out:
                    position = self._end(end, size, total)
                    continue
                self._others[len(self._values)] = single
            position = self._end(end, size, total)
            self._kept.append(index)
            values(plain[end:position])
            keys(key)
            event_times(event_time)

    def _end(self, start: int, size: int, total: int) -> int:
        if not start <= start + size <= total:
            raise ProtocolError("a message of a batch does not fit its entry", field="entry")
        return start + size

    def _parse(self, packed: bytes) -> SingleMessageMetadata:
        if packed != self._packed:
            self._packed, self._parsed = packed, SingleMessageMetadata.FromString(packed)
        return self._parsed

    def messages(self) -> Messages:
        """Return the columns."""
        found = Messages(self._kept, self._values, self._keys)
        for row, single in self._others.items():
            self._keys[row] = key_of(single)
            self._event_times[row] = single.event_time
            if single.null_value:
                self._values[row] = None
            if single.properties:
                found.properties = found.properties or [[] for _ in self._values]
                found.properties[row] = properties_of(single)
            if single.HasField("ordering_key"):
                found.ordering_keys = found.ordering_keys or [None] * len(self._values)
                found.ordering_keys[row] = ordering_key_of(single)
        found.event_times = self._event_times if any(self._event_times) else None
        return found


def _varint(plain: bytes, at: int) -> tuple[int, int]:
    """Return where a number ends, and the number."""
    number = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = plain[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _MORE:
            return at, number & _U64
    raise ProtocolError("a number in a batch does not end", field="entry")
