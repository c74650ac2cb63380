"""How long the compacted form keeps the messages that delete a key (pure).

A reader of the compacted form that is half through when a compaction ends has read values of keys that were deleted
since. So a deletion stays for a time after the compaction that first read it, and not after it was published: its key's
value was there to be read until then. The compacted ledger has the horizons and the times of earlier compactions; the
first of them whose horizon is not before a deletion is the one that first read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from heliograph.actors.broker.records.position import EARLIEST, Position

HISTORY_MAX = 64  # compactions that are remembered (I15)


class PastCompaction(NamedTuple):
    """A compaction: the last position that it read, and when it ended, in ms since the epoch."""

    horizon: Position
    ended_ms: int


def forgotten_up_to(history: Sequence[PastCompaction], now_ms: int, kept_ms: int) -> Position:
    """Return the last position whose deletions need not be kept any more; EARLIEST if all are.

    Args:
        history: the compactions before this one, oldest first.
        kept_ms: how long a deletion is kept after the compaction that first read it.
    """
    old = [one.horizon for one in history if now_ms - one.ended_ms >= kept_ms]
    return max(old, default=EARLIEST)


def with_compaction(
    history: Sequence[PastCompaction], ended: PastCompaction, kept_ms: int
) -> tuple[PastCompaction, ...]:
    """Return the history for the next compaction: compactions whose deletions are still kept, and the last one.

    At most ``HISTORY_MAX`` are remembered. A forgotten compaction leaves its deletions to the next, so they are kept
    longer; the one is chosen that makes the least difference.
    """
    left = [one for one in history if ended.ended_ms - one.ended_ms < kept_ms] + [ended]
    while len(left) > HISTORY_MAX:
        gaps = [after.ended_ms - one.ended_ms for one, after in pairwise(left)]
        del left[gaps.index(min(gaps))]
    assert left[-1] == ended, "the record just read is remembered"
    return tuple(left)
