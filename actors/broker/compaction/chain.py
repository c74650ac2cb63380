"""The chain of entries that a reader of a topic's compacted form sees (pure): the entries that compaction kept, then
everything published since.

It has the interface of ``Chain``, so cursors and dispatchers work on it unchanged. Its indexes count the kept entries,
then continue with the entries of the topic's own chain after the horizon. Positions are the original ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from typing_extensions import override

from heliograph.actors.broker.managed_ledger.chain import Chain, Span
from heliograph.actors.broker.records.position import Position


class Positions:
    """A growing list of positions in order, 16 bytes each."""

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        self._numbers = array("q")
        for position in positions:
            self._numbers.extend(position)

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def __getitem__(self, at: int) -> Position:
        return Position(self._numbers[2 * at], self._numbers[2 * at + 1])

    def append(self, position: tuple[int, int]) -> None:
        """Add a position after all others."""
        self._numbers.extend(position)

    def frombytes(self, data: bytes | memoryview) -> None:
        """Add the positions that ``tobytes`` returned, of this list or another."""
        self._numbers.frombytes(data)

    def tobytes(self, first: int, count: int) -> bytes:
        """Return ``count`` positions from ``first`` on, fewer at the end, as pairs of i64 in this machine's byte
        order."""
        return self._numbers[2 * first : 2 * (first + count)].tobytes()


class CompactedChain(Chain):
    """The chain of a compacted topic.

    Args:
        base: the topic's own chain, in memory from the horizon on.
        kept: the positions of the entries that compaction kept, in order, none after the horizon.
        horizon: the last position that compaction read.
    """

    def __init__(self, base: Chain, kept: Positions, horizon: Position) -> None:
        super().__init__()
        assert not len(kept) or kept[len(kept) - 1] <= horizon, "compaction keeps nothing from after its horizon"
        self.base = base
        self.kept = kept
        self._horizon = horizon
        self._shift = base.after(horizon) - len(kept)  # after the horizon: index of the base - index of this chain

    @property
    def end(self) -> int:  # type: ignore[override]  # the base grows, and this with it
        """Return the index after the newest confirmed entry (I3)."""
        return self.base.end - self._shift

    @property
    @override
    def first(self) -> int:
        return 0 if len(self.kept) else self._clamped(self.base.first)

    @override
    async def load(self, position: Position) -> None:
        """Do nothing: the base is in memory from the horizon on, and no caller asks for earlier entries."""

    @override
    async def load_index(self, index: int) -> None:
        """Do nothing, as ``load``."""

    @property
    @override
    def last_ledger_id(self) -> int:
        return self.base.last_ledger_id

    def is_kept(self, index: int) -> bool:
        """Return whether compaction kept the entry."""
        return index < len(self.kept)

    @override
    def to_base(self, index: int) -> int:
        """Return the index in the base of an entry after the horizon; for an entry that was kept, that of the first one
        after the horizon."""
        return max(index, len(self.kept)) + self._shift

    @override
    def from_base(self, base_index: int) -> int:
        """Return the index in this chain of an entry of the base; for an entry up to the horizon, that of the next one
        kept."""
        if base_index - self._shift >= len(self.kept) or base_index <= self.base.first:
            return self._clamped(base_index) if base_index > self.base.first else self.first
        return self.at_or_after(self.base.position_at(base_index))

    @override
    def find(self, position: Position) -> int | None:
        at = bisect_left(self.kept, position)
        if at < len(self.kept):
            return at if self.kept[at] == position else None
        index = self.base.find(position)
        if index is None or index - self._shift < len(self.kept):
            return None
        return index - self._shift

    @override
    def find_chunk(self, position: Position, bits: int) -> Iterator[tuple[int, int]]:
        ledger_id, first_id = position
        at, stop = bisect_left(self.kept, position), Position(ledger_id, first_id + bits.bit_length())
        while at < len(self.kept) and self.kept[at] < stop:  # not all adjacent entries are kept
            if bits >> (self.kept[at].entry_id - first_id) & 1:
                yield at, 1
            at += 1
        if ledger_id == self._horizon.ledger_id:
            first_id = max(first_id, self._horizon.entry_id + 1)
        if Position(ledger_id, first_id) > self._horizon:
            yield from super().find_chunk(Position(ledger_id, first_id), bits >> (first_id - position.entry_id))

    @override
    def at_or_after(self, position: Position) -> int:
        at = bisect_left(self.kept, position)
        if at < len(self.kept) or position <= self._horizon:
            return at
        return self._clamped(self.base.at_or_after(position))

    @override
    def position_at(self, index: int) -> Position:
        return self.kept[index] if self.is_kept(index) else self.base.position_at(index + self._shift)

    @override
    def position_before(self, index: int) -> Position:
        if index <= self.first:
            if not len(self.kept):
                return self.base.position_before(self.to_base(index))
            return Position(self.kept[0].ledger_id, -1)
        return self.position_at(index - 1)

    @override
    def spans(self, first: int, count: int) -> Iterator[Span]:
        stop = min(first + count, self.end)
        for index in range(max(first, 0), min(stop, len(self.kept))):
            yield Span(*self.kept[index], index, 1)
        behind = max(first, len(self.kept))
        if behind < stop:
            for span in self.base.spans(behind + self._shift, stop - behind):
                yield span._replace(first=span.first - self._shift)

    def _clamped(self, base_index: int) -> int:
        return max(base_index - self._shift, len(self.kept))
