"""Key ranges by halving: a consumer that joins gets half of the widest range of hashes (pure).

This is the alternative to the consistent-hash ring of ``key_ring.py``. Each consumer owns one or more ranges. A range
of a consumer that leaves goes to the neighbour above it, the last range to the neighbour below.
"""

from __future__ import annotations

from bisect import bisect_left

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE


class KeySplit:
    """Consumers over the hashes 0..65535, without a gap."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last hash of each range, rising; the last one is KEY_HASH_RANGE - 1
        self._owners: list[ConsumerState] = []  # of the ranges

    def add(self, consumer: ConsumerState) -> None:
        """Give a consumer that joins half of the widest range.

        Raises:
            ConsumerAssignError: the widest range is one hash.
        """
        assert consumer not in self._owners, "a consumer joins once"
        if not self._ends:
            self._ends, self._owners = [KEY_HASH_RANGE - 1], [consumer]
            return
        starts = [0, *(end + 1 for end in self._ends[:-1])]
        widths = [end - start for start, end in zip(starts, self._ends, strict=True)]
        at = widths.index(max(widths))
        if widths[at] == 0:
            raise ConsumerAssignError("there are as many consumers as hashes")
        self._ends.insert(at, starts[at] + widths[at] // 2)
        self._owners.insert(at, consumer)
        self._check()

    def remove(self, consumer: ConsumerState) -> None:
        """Give the ranges of a consumer that leaves to its neighbours."""
        while consumer in self._owners:
            at = self._owners.index(consumer)
            if len(self._owners) > 1 and at == len(self._owners) - 1:
                self._ends[at - 1] = self._ends[at]
            del self._owners[at], self._ends[at]
        self._check()

    def owner(self, key_hash: int) -> ConsumerState | None:
        """Return the consumer that owns a hash, None without consumers."""
        return self._owners[bisect_left(self._ends, key_hash)] if self._owners else None

    def ranges(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """Return the ranges that a consumer owns, both ends included, in order."""
        starts = [0, *(end + 1 for end in self._ends)]
        return [(starts[at], end) for at, end in enumerate(self._ends) if self._owners[at] is consumer]

    def _check(self) -> None:
        assert len(self._ends) == len(self._owners), "each range has an owner"
        assert not self._ends or self._ends[-1] == KEY_HASH_RANGE - 1, "the ranges cover all hashes"
