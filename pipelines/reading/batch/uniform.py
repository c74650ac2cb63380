"""A batch whose messages all have one size and one form: a matrix of bytes, whose columns are cut out of it at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliograph.pipelines.reading.batch.messages import (
    EVENT_TIME,
    KEY,
    MESSAGES_MIN,
    MORE,
    NUMBER_BYTES_MAX,
    SEQUENCE_ID,
    SIZE,
    Matrix,
    Messages,
    length_at,
)


def uniform_batch(plain: bytes | memoryview, count: int) -> Messages | None:
    """Return the columns of a batch whose messages all have the form and the sizes of the first; None for others."""
    stride, rest = divmod(len(plain), max(1, count))
    if count < MESSAGES_MIN or rest or stride < 6:
        return None
    (length,) = length_at(plain)
    form = _Form.of(bytes(plain[4 : 4 + length]))
    if form is None or 4 + length + form.payload_size != stride:
        return None
    matrix = np.frombuffer(plain, np.uint8).reshape(count, stride)
    heads = matrix[:, : 4 + length]
    if ((heads & form.fixed) != (heads[0] & form.fixed)).any():
        return None
    return Messages(
        range(count),
        matrix[:, 4 + length :],
        keys=None if form.key is None else heads[:, form.key],
        event_times=None if form.event_time is None else _numbers(heads[:, form.event_time]),
    )


@dataclass(slots=True)
class _Form:
    """Where the fields of a head are, and which of its bits are the same in all heads of this form."""

    fixed: npt.NDArray[np.uint8]  # a mask over the four bytes of its length and the head
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
                if tag == KEY:
                    size = head[at]
                    at += 1
                    form.key = slice(4 + at, 4 + at + size)
                    if size & MORE or at + size > len(head):
                        return None
                    form.fixed[form.key] = 0
                    at += size
                    continue
                end = at
                while head[end] & MORE:
                    end += 1
                if end - at >= NUMBER_BYTES_MAX:
                    return None
                place = slice(4 + at, 4 + end + 1)
                if tag == SIZE:
                    form.payload_size = _number(head[at : end + 1])
                elif tag in (EVENT_TIME, SEQUENCE_ID):
                    form.fixed[place] = MORE
                    if tag == EVENT_TIME:
                        form.event_time = place
                else:
                    return None
                at = end + 1
        except IndexError:
            return None
        return form if form.payload_size >= 0 else None


def _number(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


def _numbers(varints: Matrix) -> npt.NDArray[np.uint64]:
    """Return the numbers in the rows of a matrix, all with the same count of bytes."""
    width = varints.shape[1]
    numbers = np.zeros(len(varints), np.uint64)
    for place in range(width):
        numbers |= (varints[:, place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return numbers
