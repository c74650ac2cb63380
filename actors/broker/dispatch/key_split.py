"""Key ranges by halving: a consumer that joins gets half of the widest range of hashes (pure).

This is the alternative to the consistent-hash ring of ``key_ring.py``. Each consumer owns one range. If a consumer
leaves, its range goes to the neighbour above it, the last range to the neighbour below.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from sortedcontainers import SortedSet
from typing_extensions import override

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_ring import KeyRanges, Moved
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE


class KeySplit(KeyRanges):
    """Consumers over the hashes 0..65535, without a gap."""

    def __init__(self) -> None:
        super().__init__()
        self._end_of: dict[ConsumerState, int] = {}
        self._widest: SortedSet[tuple[int, int]] = SortedSet()  # (width below 0, end) of each range

    @override
    def add(self, consumer: ConsumerState) -> list[Moved]:
        assert consumer not in self._end_of, "a consumer joins once"
        if not self._ends:
            self._insert(0, KEY_HASH_RANGE - 1, consumer)
            return []
        width, end = self._widest[0]
        if width == -1:
            raise ConsumerAssignError("there are as many consumers as hashes")
        at, before = bisect_left(self._ends, end), self._owners[end]
        self._widest.discard((width, end))
        self._insert(at, end + width + (1 - width) // 2, consumer)
        self._widest.add((-self._width(at + 1), end))
        return self._moved(at, before)

    @override
    def remove(self, consumer: ConsumerState) -> list[Moved]:
        end = self._end_of.pop(consumer)
        at = bisect_left(self._ends, end)
        moved = self._moved(at, consumer)
        self._widest.discard((-self._width(at), end))
        del self._owners[end]
        if len(self._ends) == 1:
            self._ends.clear()
            return moved
        if at == len(self._ends) - 1:  # the neighbour below reaches up to here now
            at -= 1
            below = self._ends[at]
            heir = self._owners.pop(below)
            assert heir is not None, "every hash has an owner"
            self._widest.discard((-self._width(at), below))
            self._owners[end], self._end_of[heir] = heir, end
        else:
            self._widest.discard((-self._width(at + 1), self._ends[at + 1]))
        del self._ends[at]
        self._widest.add((-self._width(at), self._ends[at]))
        assert len(self._ends) == len(self._widest) == len(self._end_of), "each consumer has one range"
        return moved

    @override
    def _ends_of(self, consumer: ConsumerState) -> Collection[int]:
        return [self._end_of[consumer]]

    def _insert(self, at: int, end: int, consumer: ConsumerState) -> None:
        self._ends.insert(at, end)
        self._owners[end], self._end_of[consumer] = consumer, end
        self._widest.add((-self._width(at), end))

    def _width(self, at: int) -> int:
        return self._ends[at] - (self._ends[at - 1] if at else -1)
