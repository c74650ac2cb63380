"""The other way to share the hashes of a Key_Shared subscription (pure): a newcomer halves the widest range.

Each consumer has one or more whole ranges; who leaves gives his to the neighbour above, the last one below.
"""

from __future__ import annotations

from bisect import bisect_left

from actors.broker.dispatch import ConsumerState
from heliograph.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE


class KeySplit:
    """Consumers over the hashes 1..65535."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last hash of each range, rising
        self._owners: list[ConsumerState] = []

    def add(self, consumer: ConsumerState) -> None:
        """A consumer joins.

        Raises:
            ConsumerAssignError: the widest range is one hash.
        """
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

    def remove(self, consumer: ConsumerState) -> None:
        """A consumer leaves."""
        while consumer in self._owners:
            at = self._owners.index(consumer)
            if len(self._owners) > 1 and at == len(self._owners) - 1:
                self._ends[at - 1] = self._ends[at]
            del self._owners[at], self._ends[at]

    def owner(self, key_hash: int) -> ConsumerState | None:
        """Who gets a hash; None when nobody does."""
        return self._owners[bisect_left(self._ends, key_hash)] if self._owners else None

    def ranges(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """The hashes of a consumer, both ends included."""
        starts = [0, *(end + 1 for end in self._ends)]
        return [(starts[at], end) for at, end in enumerate(self._ends) if self._owners[at] is consumer]
