"""One pass over the messages of a batch: heads of the usual form are read in place, others by protobuf."""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from heliograph.base.errors import ProtocolError
from heliograph.pipelines.reading.batch.messages import (
    EVENT_TIME,
    KEY,
    MORE,
    NUMBER_BYTES_MAX,
    SEQUENCE_ID,
    SIZE,
    Messages,
    length_at,
)
from heliograph.pipelines.reading.fields import key_of, ordering_key_of, properties_of
from heliograph.protocol.pulsar_pb2 import SingleMessageMetadata

_U64 = (1 << 64) - 1


class BatchWalk:
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
            (length,) = length_at(plain, position)
            at = position + 4
            end = at + length
            key, event_time = None, 0
            if plain[at] == KEY and plain[at + 1] < MORE:
                start = at + 2
                at = start + plain[at + 1]
                key = plain[start:at]
            size = -1
            if at < end and plain[at] == SIZE:
                size = plain[at + 1]
                at += 2
                if size & MORE:
                    size = size & 0x7F | plain[at] << 7
                    at += 1
                    if size & MORE << 7:
                        size = -1  # of 16 KiB or more: reading its head costs nothing beside it
            if at != end and size >= 0:
                if at < end and plain[at] == EVENT_TIME:
                    at, event_time = _varint(plain, at + 1)
                if at < end and plain[at] == SEQUENCE_ID:
                    at += 1
                    while plain[at] & MORE:
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
    for shift in range(0, 7 * NUMBER_BYTES_MAX, 7):
        byte = plain[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < MORE:
            return at, number & _U64
    raise ProtocolError("a number in a batch does not end", field="entry")
