"""The messages of a batch as columns, and the bytes of a message's head: u32 length | SingleMessageMetadata."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEY, SIZE, EVENT_TIME, SEQUENCE_ID = 0x12, 0x18, 0x28, 0x40
MORE = 0x80  # set in every byte of a number but the last
NUMBER_BYTES_MAX = 10
MESSAGES_MIN = 8  # in a batch: below it, building arrays costs more than walking
length_at = struct.Struct(">I").unpack_from


Matrix: TypeAlias = npt.NDArray[np.uint8]  # byte strings of one size, one a row


@dataclass(slots=True)
class Messages:
    """The messages of a batch that compaction left, as columns of equal length; a column that is None has only nulls.

    A matrix is a view of the batch's bytes: it is copied when a record batch is made of it.

    Attributes:
        indexes: in the batch.
        values: the payloads; null for a message without one.
        event_times: in ms; 0: none.
        properties: pairs of key and value, with each key once.
    """

    indexes: Sequence[int]
    values: list[bytes | None] | pa.Array | Matrix
    keys: list[bytes | None] | pa.Array | Matrix | None = None
    event_times: list[int] | npt.NDArray[np.uint64] | None = None
    properties: list[list[tuple[str, str]]] | None = None
    ordering_keys: list[bytes | None] | None = None
