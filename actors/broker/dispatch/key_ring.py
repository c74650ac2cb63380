"""The owners of the key hashes of a Key_Shared subscription (pure).

The hashes 0..65535 are cut into ranges that touch each other, each with its owner. A consumer that joins or leaves
changes the ranges that it gains or loses, and no others: with thousands of consumers that is a small part of them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from typing import NamedTuple

from typing_extensions import override

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE, murmur3_hash

POINTS_PER_CONSUMER = 100  # on the ring; enough for nearly equal shares
_LAST = KEY_HASH_RANGE - 1
_ABOVE = 15  # bits of a point's hash above those of its place


class Moved(NamedTuple):
    """A range of hashes, both ends included, that has another owner than before."""

    first: int
    last: int
    before: ConsumerState | None


class KeyRanges(ABC):
    """Which consumer owns which hash."""

    def __init__(self) -> None:
        self._ends: list[int] = []  # the last hash of each range, rising
        self._owners: dict[int, ConsumerState | None] = {}  # by the end of the range; None: no consumer owns it

    @abstractmethod
    def add(self, consumer: ConsumerState) -> list[Moved]:
        """Give a joining consumer its hashes. Return the hashes that had another owner, or waited for one.

        Raises:
            ConsumerAssignError: there are no hashes for it.
        """

    @abstractmethod
    def remove(self, consumer: ConsumerState) -> list[Moved]:
        """Give the hashes of a consumer that leaves to others. Return them."""

    def owner(self, key_hash: int) -> ConsumerState | None:
        """Return the consumer that owns a hash, None if no consumer does."""
        ends = self._ends
        if not ends:
            return None
        at = bisect_left(ends, key_hash)
        return self._owners[ends[at if at < len(ends) else 0]]  # after the last end a ring starts over

    def owners(self, hashes: Iterable[int]) -> list[ConsumerState | None]:
        """Return the ``owner`` of each of many hashes, in half of the time."""
        ends, owners = self._ends, self._owners
        if not ends:
            return [None for _ in hashes]
        last = ends[-1]
        return [owners[ends[bisect_left(ends, key_hash) if key_hash <= last else 0]] for key_hash in hashes]

    def ranges(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """Return the ranges of hashes that a consumer owns, both ends included, in order."""
        ends = [end for end in self._ends_of(consumer) if self._owners.get(end) is consumer]
        return sorted(piece for end in ends for piece in self._at(bisect_left(self._ends, end)))

    @abstractmethod
    def _ends_of(self, consumer: ConsumerState) -> Collection[int]:
        """Return the ends of all ranges that the consumer owns, and perhaps others, each once."""

    def _at(self, at: int) -> list[tuple[int, int]]:
        """Return a range, of a ring perhaps in two pieces."""
        ends = self._ends
        if at:
            return [(ends[at - 1] + 1, ends[at])]
        return [(0, ends[0])] if ends[-1] == _LAST else [(0, ends[0]), (ends[-1] + 1, _LAST)]

    def _moved(self, at: int, before: ConsumerState | None) -> list[Moved]:
        return [] if before is None else [Moved(first, last, before) for first, last in self._at(at)]


class KeyRing(KeyRanges):
    """A consistent-hash ring: each consumer has some points on it, and a hash belongs to the next point."""

    def __init__(self) -> None:
        super().__init__()
        # Places with points, which are the ends of the ranges. Of several points at one, the least owns the range.
        self._points: dict[int, list[tuple[int, int, ConsumerState]]] = {}

    @override
    def add(self, consumer: ConsumerState) -> list[Moved]:
        moved: list[Moved] = []
        for place, above in _points_of(consumer):
            point = (above, consumer.key, consumer)
            before = self.owner(place)
            others = self._points.get(place)
            if others is None:
                self._points[place] = [point]
                insort(self._ends, place)
            else:
                insort(others, point)
                if others[0] is not point:
                    continue
            self._owners[place] = consumer
            if before is not consumer:
                moved += self._moved(bisect_left(self._ends, place), before)
        return moved

    @override
    def remove(self, consumer: ConsumerState) -> list[Moved]:
        moved: list[Moved] = []
        for place, above in _points_of(consumer):
            points = self._points[place]
            is_owner = points[0][2] is consumer
            points.remove((above, consumer.key, consumer))
            if not is_owner:
                continue
            at = bisect_left(self._ends, place)
            moved += self._moved(at, consumer)
            if points:
                self._owners[place] = points[0][2]
            else:
                del self._points[place], self._owners[place], self._ends[at]
        return moved

    @override
    def _ends_of(self, consumer: ConsumerState) -> Collection[int]:
        return {place for place, _ in _points_of(consumer)}


class FixedRanges(KeyRanges):
    """Each consumer names its ranges. Other hashes have no owner."""

    def __init__(self) -> None:
        super().__init__()
        self._ends, self._owners = [_LAST], {_LAST: None}

    @override
    def add(self, consumer: ConsumerState) -> list[Moved]:
        wanted = sorted(consumer.key_ranges or ())
        end = -1
        for first, last in wanted:
            if not 0 <= first <= last < KEY_HASH_RANGE:
                raise ConsumerAssignError(
                    f"{first}..{last} is not a range of hashes", field="hashRanges", limit=f"0 to {_LAST}"
                )
            at = bisect_left(self._ends, first)  # the range around it has to be free, and to reach as far
            if first <= end or self._owners[self._ends[at]] is not None or self._ends[at] < last:
                raise ConsumerAssignError(f"the range {first}..{last} overlaps with another", field="hashRanges")
            end = last
        for first, last in wanted:
            self._cut(first)
            self._cut(last + 1)
            self._owners[last] = consumer
        return [Moved(first, last, None) for first, last in wanted]

    @override
    def remove(self, consumer: ConsumerState) -> list[Moved]:
        moved = [Moved(first, last, consumer) for first, last in consumer.key_ranges or ()]
        for first, last, _ in moved:
            self._owners[last] = None
            self._join(first)
            self._join(last + 1)
        return moved

    @override
    def _ends_of(self, consumer: ConsumerState) -> Collection[int]:
        return [last for _, last in consumer.key_ranges or ()]

    def _cut(self, first: int) -> None:
        """Let a range begin at a hash."""
        end = first - 1
        at = bisect_left(self._ends, end)
        if end >= 0 and (at == len(self._ends) or self._ends[at] != end):
            self._owners[end] = self._owners[self._ends[at]]
            self._ends.insert(at, end)

    def _join(self, first: int) -> None:
        """Let no range begin at a hash if it and the one before have no owner."""
        end = first - 1
        if 0 <= end < _LAST and self._owners[end] is None and self.owner(first) is None:
            del self._owners[end], self._ends[bisect_left(self._ends, end)]


def _points_of(consumer: ConsumerState) -> list[tuple[int, int]]:
    """Return the points of a consumer: the place among the hashes, and what decides between points at one place.

    With thousands of consumers most places have several points, and none of these may be the first everywhere.
    """
    points = (murmur3_hash(f"{consumer.name}-{consumer.key}-{n}") for n in range(POINTS_PER_CONSUMER))
    return [(point % KEY_HASH_RANGE, point >> 31 - _ABOVE) for point in points]
