"""The messages of a batch as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


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
