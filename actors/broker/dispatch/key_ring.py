"""The owners of the key hashes of a Key_Shared subscription (pure)."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_split import KeySplit
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE, murmur3_hash

POINTS_PER_CONSUMER = 100  # on the ring; enough for nearly equal shares


class KeyRing:
    """Consumers over the hashes 1..65535: by their fixed ranges if they have any, else by ``split`` if that is given,
    else by a consistent-hash ring.

    When a consumer joins or leaves, only the hashes that it gains or loses change their owner.
    """

    def __init__(self, split: KeySplit | None = None) -> None:
        self._split = split
        self._ranges: list[tuple[int, int, ConsumerState]] = []  # fixed, both ends included, sorted
        self._ends: list[int] = []  # the last hashes of the fixed ranges
        self._points: list[int] = []  # hashes on the ring, sorted
        self._owners: list[ConsumerState] = []  # of the points
        self._consumers: list[ConsumerState] = []

    def add(self, consumer: ConsumerState) -> None:
        """Give a consumer that joins its hashes.

        Raises:
            ConsumerAssignError: its fixed ranges are out of bounds or overlap with those of another consumer, or some
                consumers have fixed ranges and some have not.
        """
        assert consumer not in self._consumers, "a consumer joins once"
        if self._consumers and (consumer.key_ranges is None) != (self._consumers[0].key_ranges is None):
            raise ConsumerAssignError("consumers with and without fixed key ranges cannot share a subscription")
        self._check_ranges(consumer.key_ranges or ())
        if self._split is not None and consumer.key_ranges is None:
            self._split.add(consumer)
        self._consumers.append(consumer)
        self._build()

    def remove(self, consumer: ConsumerState) -> None:
        """Give the hashes of a consumer that leaves to others. Fixed ranges have no owner then."""
        self._consumers.remove(consumer)
        if self._split is not None:
            self._split.remove(consumer)
        self._build()

    def owner(self, key_hash: int) -> ConsumerState | None:
        """Return the consumer that owns a hash, None if no consumer does."""
        if self._ranges:
            at = bisect_left(self._ends, key_hash)
            if at < len(self._ranges) and self._ranges[at][0] <= key_hash:
                return self._ranges[at][2]
            return None
        if self._split is not None:
            return self._split.owner(key_hash)
        if not self._points:
            return None
        at = bisect_left(self._points, key_hash)
        return self._owners[at] if at < len(self._owners) else self._owners[0]

    def ranges(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """Return the ranges of hashes that a consumer owns, both ends included, in order."""
        if self._ranges:
            return [(first, last) for first, last, owner in self._ranges if owner is consumer]
        if self._split is not None:
            return self._split.ranges(consumer)
        found: list[tuple[int, int]] = []
        first = 0
        for point, owner in zip(self._points, self._owners, strict=True):
            if owner is consumer and point >= first:
                found.append((first, point))
            first = max(first, point + 1)
        if self._owners and self._owners[0] is consumer and first < KEY_HASH_RANGE:
            found.append((first, KEY_HASH_RANGE - 1))  # after the last point the ring starts over
        return found

    def _check_ranges(self, wanted: tuple[tuple[int, int], ...]) -> None:
        taken = [(first, last) for first, last, _ in self._ranges]
        for first, last in wanted:
            if not 0 <= first <= last < KEY_HASH_RANGE:
                raise ConsumerAssignError(
                    f"{first}..{last} is not a range of hashes", field="hashRanges", limit=f"0 to {KEY_HASH_RANGE - 1}"
                )
            if any(first <= other_last and other_first <= last for other_first, other_last in taken):
                raise ConsumerAssignError(f"the range {first}..{last} overlaps with another", field="hashRanges")
            taken.append((first, last))

    def _build(self) -> None:
        self._ranges = sorted(
            ((first, last, one) for one in self._consumers for first, last in one.key_ranges or ()),
            key=lambda item: item[0],
        )
        self._ends = [last for _, last, _ in self._ranges]
        points = sorted(
            (murmur3_hash(f"{one.name}-{one.key}-{n}") % KEY_HASH_RANGE, one.name, one.key, number)
            for number, one in enumerate(self._consumers)
            if one.key_ranges is None
            for n in range(POINTS_PER_CONSUMER)
        )
        self._points = [point[0] for point in points]
        self._owners = [self._consumers[point[3]] for point in points]
        assert not (self._ranges and self._points), "either all consumers have fixed ranges or none"
        assert all(one[1] < other[0] for one, other in pairwise(self._ranges)), "fixed ranges do not overlap"  # I16
