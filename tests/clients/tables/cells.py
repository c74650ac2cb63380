"""The cells of the matrix: combinations of how a topic is written and read, in which every few values meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

AXES: dict[str, tuple[str, ...]] = {
    "codec": ("none", "lz4", "zlib", "zstd", "snappy"),
    "batching": ("single", "batch", "by-key", "of-one", "chunks"),
    "schema": ("bytes", "string", "json", "avro"),
    "keys": ("none", "text", "some", "ordering"),
    "compacted": ("no", "yes"),
    "partitions": ("0", "2"),
    "trimmed": ("no", "yes"),
}
CANDIDATES = 60  # of which the cell with the most new combinations is taken

Combination = tuple[tuple[int, str], ...]  # of axes by their number, and values


@dataclass(frozen=True)
class Cell:
    """How the messages of one topic are written and read."""

    codec: str
    batching: str
    schema: str
    keys: str
    compacted: str
    partitions: str
    trimmed: str

    def __str__(self) -> str:
        return ",".join(self.values)

    @property
    def values(self) -> tuple[str, ...]:
        """Return the value of each axis."""
        return tuple(getattr(self, one.name) for one in fields(self))

    @property
    def is_possible(self) -> bool:
        """Return whether it has a meaning: compaction needs keys, and what is in chunks are plain bytes."""
        is_keyless = self.compacted == "yes" and self.keys == "none"
        return not is_keyless and (self.batching != "chunks" or self.schema == "bytes")

    def combinations(self, strength: int) -> Iterator[Combination]:
        """Yield what so many axes have in the cell, for every choice of axes."""
        return itertools.combinations(enumerate(self.values), strength)


def cells(strength: int, *, without: dict[str, tuple[str, ...]] | None = None) -> list[Cell]:
    """Return few cells in which every ``strength`` values meet that can. The choice is the same in every run.

    Args:
        without: values by axis that no cell has.
    """
    axes = {name: [one for one in values if one not in (without or {}).get(name, ())] for name, values in AXES.items()}
    possible = [cell for values in itertools.product(*axes.values()) if (cell := Cell(*values)).is_possible]
    wanted = {one for cell in possible for one in cell.combinations(strength)}
    draw = random.Random(strength)
    chosen: list[Cell] = []
    while wanted:
        # The first candidate has one of those that are left, so there is an end.
        needed = min(wanted)
        having = [cell for cell in possible if all(cell.values[axis] == value for axis, value in needed)]
        candidates = [draw.choice(having) for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda cell: sum(one in wanted for one in cell.combinations(strength)))
        wanted.difference_update(best.combinations(strength))
        chosen.append(best)
    return chosen
