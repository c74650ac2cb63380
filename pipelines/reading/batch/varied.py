"""A batch of messages of different sizes, whose heads all have the usual form: they are found and read all at once.

Each head begins with a length of four bytes of which three are zero. Wherever such bytes stand in a batch, a head may
begin. From each of these places the head is read and the place of the next message computed, for all places together.
The messages of the batch are those places that lead from one to the next, from its first byte on; others are bytes of
values that look like a head.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heliograph.pipelines.reading.batch.arrays import OFFSET_MAX, numbers_of
from heliograph.pipelines.reading.batch.messages import (
    EVENT_TIME,
    KEY,
    MORE,
    NUMBER_BYTES_MAX,
    SEQUENCE_ID,
    SIZE,
    Messages,
)

MESSAGES_MIN = 256  # in a batch: below it, walking costs less
HEAD_BYTES_MIN = 2  # a tag and a number
PLACES_A_MESSAGE_MAX = 8  # where a head may begin; with more, as in values full of zeros, walking costs less
SIZE_BYTES_MAX = 3  # of the number that is a payload's size

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Places: TypeAlias = npt.NDArray[np.int64]
_Flags: TypeAlias = npt.NDArray[np.bool_]


def varied_batch(plain: bytes | memoryview, count: int) -> Messages | None:
    """Return the columns of a batch if all its heads have the usual form, each shorter than 256 bytes; else None."""
    if count < MESSAGES_MIN or len(plain) > OFFSET_MAX:
        return None
    data: _Bytes = np.frombuffer(plain, np.uint8)
    starts = _places(data)
    if not count <= len(starts) <= PLACES_A_MESSAGE_MAX * count or starts[0] != 0:
        return None
    heads = _Heads(data, starts)
    chosen = heads.chain(count)
    return None if chosen is None else heads.messages(plain, chosen)


def _places(data: _Bytes) -> _Places:
    """Return where a head may begin, in order.

    Of its three zeros, two stand together at an even address, where a search takes two bytes at once: the first two or
    the last two.
    """
    odd = data.__array_interface__["data"][0] & 1
    pairs = data[odd : odd + (len(data) - odd) // 2 * 2].view(np.uint16)
    zeros = np.flatnonzero(pairs == 0) * 2 + odd
    begins = np.concatenate(
        (zeros[data.take(zeros + 2, mode="clip") == 0], zeros[data.take(zeros - 1, mode="clip") == 0] - 1)
    )
    tags = data.take(begins + 4, mode="clip")
    is_likely = (data.take(begins + 3, mode="clip") >= HEAD_BYTES_MIN) & ((tags == KEY) | (tags == SIZE))
    is_likely &= (begins >= 0) & (begins + 4 + HEAD_BYTES_MIN <= len(data))
    likely: _Places = np.sort(begins[is_likely], kind="stable")
    return likely


class _Heads:
    """The heads at some places, read field by field. ``are_usual`` says which of them are heads of the usual form."""

    def __init__(self, data: _Bytes, starts: _Places) -> None:
        self._data = data
        self.starts = starts
        first = starts + 4
        self.values = first + self._at(starts + 3)
        self.has_key = self._at(first) == KEY
        key_bytes = np.where(self.has_key, self._at(first + 1), 0)
        self.are_usual = key_bytes < MORE
        self.keys = first + 2 * self.has_key
        self.key_ends = self.keys + key_bytes
        self.are_usual &= self._at(self.key_ends) == SIZE
        sizes, at = self._numbers(self.key_ends + 1, self.are_usual, SIZE_BYTES_MAX)
        self.event_times: npt.NDArray[np.uint64] | None = None
        if (at != self.values).any():
            has_time = (at < self.values) & (self._at(at) == EVENT_TIME)
            if has_time.any():
                times, ends = self._numbers(at + 1, has_time, NUMBER_BYTES_MAX)
                self.event_times, at = np.where(has_time, times, np.uint64(0)), np.where(has_time, ends, at)
            has_sequence = (at < self.values) & (self._at(at) == SEQUENCE_ID)
            if has_sequence.any():
                at = np.where(has_sequence, self._numbers(at + 1, has_sequence, NUMBER_BYTES_MAX)[1], at)
        self.ends = self.values + sizes.astype(np.int64)
        self.are_usual &= (at == self.values) & (self.ends <= len(data))

    def _at(self, places: _Places) -> _Places:
        """Return the bytes at some places. A place beyond the batch has that of its last byte: its head is refused."""
        return self._data.take(places, mode="clip").astype(np.int64)

    def _numbers(self, at: _Places, wanted: _Flags, bytes_max: int) -> tuple[npt.NDArray[np.uint64], _Places]:
        """Return the numbers that begin at some places, and where they end. A wanted one that is longer than
        ``bytes_max`` makes its head unusual."""
        numbers = np.zeros(len(at), np.uint64)
        ends = at.copy()
        goes_on = wanted
        for place in range(bytes_max):
            found = self._at(at + place)
            numbers |= np.where(goes_on, found & 0x7F, 0).astype(np.uint64) << np.uint64(7 * place)
            ends += goes_on
            goes_on = goes_on & (found >= MORE)
            if not goes_on.any():
                return numbers, ends
        self.are_usual &= ~goes_on
        return numbers, ends

    def chain(self, count: int) -> slice | _Places | None:
        """Return which of the heads are those of the batch's ``count`` messages; None if one of them is unusual."""
        starts, ends = self.starts, self.ends
        if len(starts) == count and self.are_usual.all() and (ends[:-1] == starts[1:]).all():
            return slice(None)
        following = np.searchsorted(starts, ends)
        leads = self.are_usual & (starts.take(following, mode="clip") == ends)
        next_of = np.where(leads, following, -1).tolist()
        chosen, at = [0], 0
        while len(chosen) < count:
            at = next_of[at]
            if at < 0:
                return None
            chosen.append(at)
        return np.array(chosen) if self.are_usual[at] else None

    def messages(self, plain: bytes | memoryview, chosen: slice | _Places) -> Messages:
        """Return the columns of the chosen heads, which follow one another."""
        ends = self.ends[chosen]
        count = len(ends)
        cuts = np.zeros(4 * count + 1, np.int32)  # of each message: head, key, rest of the head, value
        cuts[1::4], cuts[2::4], cuts[3::4] = self.keys[chosen], self.key_ends[chosen], self.values[chosen]
        cuts[4::4] = ends
        pieces = pa.Array.from_buffers(pa.binary(), 4 * count, [None, pa.py_buffer(cuts), pa.py_buffer(plain)])
        keys, has_key = None, self.has_key[chosen]
        if has_key.any():
            keys = pieces.take(numbers_of(pa.int64(), np.arange(1, 4 * count, 4), ~has_key))
        values = pieces.take(numbers_of(pa.int64(), np.arange(3, 4 * count, 4)))
        times = None if self.event_times is None else self.event_times[chosen]
        return Messages(range(count), values, keys, times)
