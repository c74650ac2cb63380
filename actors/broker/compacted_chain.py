"""A topic as a reader of its compacted form sees it (pure): what compaction kept, then everything published since.

It answers as a ``Chain`` does, so cursors and dispatchers work on it unchanged. Its indexes count the entries that were
kept, then go on with those of the topic's chain behind the horizon. Positions are the original ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from actors.broker.chain import Chain, Span
from actors.broker.position import Position


class Positions:
    """A growing list of positions, in order, of 16 bytes each."""

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        self._numbers = array("q")
        for position in positions:
            self._numbers.extend(position)

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def __getitem__(self, at: int) -> Position:
        return Position(self._numbers[2 * at], self._numbers[2 * at + 1])

    def append(self, position: tuple[int, int]) -> None:
        """Add one behind all others."""
        self._numbers.extend(position)

    def frombytes(self, data: bytes | memoryview) -> None:
        """Add what ``tobytes`` gave, of this or another list."""
        self._numbers.frombytes(data)

    def tobytes(self, first: int, count: int) -> bytes:
        """``count`` positions from ``first`` on, fewer at the end, as pairs of i64 in this machine's order."""
        return self._numbers[2 * first : 2 * (first + count)].tobytes()


class CompactedChain(Chain):
    """What ``Chain`` tells of a whole topic, of a compacted one.

    Args:
        base: the topic's own chain.
        kept: positions of what compaction kept, in order, none behind the horizon.
        horizon: the last position that compaction looked at.
    """

    def __init__(self, base: Chain, kept: Positions, horizon: Position) -> None:
        assert not len(kept) or kept[len(kept) - 1] <= horizon, "compaction keeps nothing from behind its horizon"
        self.base = base
        self.kept = kept
        self._shift = base.after(horizon) - len(kept)  # from an index here to one of the base, behind the horizon

    @property
    def end(self) -> int:  # type: ignore[override]  # the base grows, and this with it
        """One past the newest confirmed entry (I3)."""
        return self.base.end - self._shift

    @property
    def first(self) -> int:
        """Index of the oldest entry there is."""
        return 0 if len(self.kept) else self._clamped(self.base.first)

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """The ledgers of the base."""
        return self.base.ledger_ids

    @property
    def last_ledger_id(self) -> int:
        """The ledger that takes new entries."""
        return self.base.last_ledger_id

    def is_kept(self, index: int) -> bool:
        """Whether the entry is one of those that compaction kept."""
        return index < len(self.kept)

    def to_base(self, index: int) -> int:
        """The index in the base of an entry behind the horizon; of others that of the first one behind it."""
        return max(index, len(self.kept)) + self._shift

    def from_base(self, base_index: int) -> int:
        """The index here of an entry of the base; of one that compaction looked at that of the next one kept."""
        if base_index - self._shift >= len(self.kept) or base_index <= self.base.first:
            return self._clamped(base_index) if base_index > self.base.first else self.first
        return self.at_or_after(self.base.position_at(base_index))

    def find(self, position: Position) -> int | None:
        """See ``Chain``."""
        at = bisect_left(self.kept, position)
        if at < len(self.kept):
            return at if self.kept[at] == position else None
        index = self.base.find(position)
        if index is None or index - self._shift < len(self.kept):
            return None
        return index - self._shift

    def at_or_after(self, position: Position) -> int:
        """See ``Chain``."""
        at = bisect_left(self.kept, position)
        return at if at < len(self.kept) else self._clamped(self.base.at_or_after(position))

    def position_at(self, index: int) -> Position:
        """See ``Chain``."""
        return self.kept[index] if self.is_kept(index) else self.base.position_at(index + self._shift)

    def position_before(self, index: int) -> Position:
        """See ``Chain``."""
        if index <= self.first:
            if not len(self.kept):
                return self.base.position_before(self.to_base(index))
            return Position(self.kept[0].ledger_id, -1)
        return self.position_at(index - 1)

    def spans(self, first: int, count: int) -> Iterator[Span]:
        """See ``Chain``."""
        stop = min(first + count, self.end)
        for index in range(max(first, 0), min(stop, len(self.kept))):
            yield Span(*self.kept[index], index, 1)
        behind = max(first, len(self.kept))
        if behind < stop:
            for span in self.base.spans(behind + self._shift, stop - behind):
                yield span._replace(first=span.first - self._shift)

    def _clamped(self, base_index: int) -> int:
        return max(base_index - self._shift, len(self.kept))
