"""What one subscription has acknowledged (pure).

Three parts: the *mark* (every entry below it is acknowledged), single entries acknowledged above the mark, and bitsets
of entries of which only some messages are. All by entry index (``actors/broker/chain.py``).

The mark moves over an entry only when that entry is acknowledged, or by ``reset`` and ``skip_to``, which are the
explicit exceptions of I11. Whatever changes is also noted as a *delta*, so that the cost of making an acknowledgement
durable does not depend on how many holes there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from actors.broker.index_set import IndexSet


@dataclass(frozen=True, slots=True)
class CursorDelta:
    """What changed since the previous delta. Applying the deltas in order to the state before the first of them gives
    the state after the last."""

    reset: bool  # the state before is void (seek)
    mark: int
    acknowledged: tuple[int, ...]  # entries above the mark, in no order, some perhaps below it by now
    partial: tuple[tuple[int, int], ...]  # (entry, bits of the messages still unacknowledged)


class Cursor:
    """Acknowledgement state of a subscription; ``mark`` is the first entry not acknowledged."""

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self._acknowledged = IndexSet()
        self._partial: dict[int, int] = {}
        self._changed = False
        self._changed_reset = False
        self._changed_entries: list[int] = []
        self._changed_partial: set[int] = set()

    @property
    def holes(self) -> int:
        """How many unbroken runs of acknowledged entries lie above the mark."""
        return self._acknowledged.run_count

    @property
    def acknowledged_above_mark(self) -> int:
        """How many entries above the mark are acknowledged."""
        return len(self._acknowledged)

    @property
    def has_changes(self) -> bool:
        """Whether ``take_delta`` would return something."""
        return self._changed

    def is_acknowledged(self, index: int) -> bool:
        """Whether the whole entry is acknowledged."""
        return index < self.mark or index in self._acknowledged

    def unacknowledged_bits(self, index: int) -> int | None:
        """The messages of a batch still unacknowledged as bits, None for an entry without acknowledged messages."""
        return self._partial.get(index)

    def next_unacknowledged(self, index: int) -> int:
        """The first entry at or above ``index`` that is not acknowledged; may lie beyond the end of the topic."""
        return self._acknowledged.next_missing(max(index, self.mark))

    def after_open(self, count: int) -> int:
        """One past the last of the next ``count`` entries that are not acknowledged; may lie beyond the topic's end."""
        return self._acknowledged.after_missing(self.mark, count)

    def backlog(self, end: int) -> int:
        """Entries below ``end`` that are not acknowledged."""
        return max(end - self.mark - len(self._acknowledged), 0)

    def acknowledge(self, index: int) -> bool:
        """Acknowledge one entry; False when it was acknowledged before."""
        if self.is_acknowledged(index):
            return False
        self._changed = True
        if self._partial:
            self._partial.pop(index, None)
        if index == self.mark:
            self._advance(index + 1)
        else:
            self._acknowledged.add(index)
            self._changed_entries.append(index)
        return True

    def acknowledge_messages(self, index: int, unacknowledged: int) -> bool:
        """Acknowledge some messages of a batch: those whose bit in ``unacknowledged`` is 0.

        Returns:
            whether the whole entry is acknowledged by this call.
        """
        if self.is_acknowledged(index):
            return False
        old = self._partial.get(index)
        left = unacknowledged if old is None else unacknowledged & old
        if left == 0:
            return self.acknowledge(index)
        if left != old:
            self._partial[index] = left
            self._changed_partial.add(index)
            self._changed = True
        return False

    def acknowledge_up_to(self, index: int) -> bool:
        """Acknowledge every entry up to and with ``index``; False when the mark was beyond it already."""
        return self.skip_to(index + 1)

    def skip_to(self, mark: int) -> bool:
        """Move the mark forward, counting everything below as acknowledged (cumulative ack, skip, TTL, eviction)."""
        if mark <= self.mark:
            return False
        self._changed = True
        self._acknowledged.drop_range(self.mark, mark)
        self._drop_partial_below(mark)
        self._advance(mark)
        return True

    def reset(self, mark: int) -> None:
        """Seek: forget every acknowledgement at and above ``mark``, count everything below as acknowledged."""
        self.mark = mark
        self._acknowledged.clear()
        self._partial.clear()
        self._changed_entries.clear()
        self._changed_partial.clear()
        self._changed = self._changed_reset = True

    def take_delta(self) -> CursorDelta | None:
        """Everything that changed since the last call, or None."""
        if not self._changed:
            return None
        delta = CursorDelta(
            self._changed_reset,
            self.mark,
            tuple(self._changed_entries),
            tuple((index, self._partial[index]) for index in self._changed_partial if index in self._partial),
        )
        self._forget_changes()
        return delta

    def apply(self, delta: CursorDelta) -> None:
        """Replay a delta that was made durable (recovery); it is not noted as a change."""
        assert not self._changed, "recovery comes before use"
        if delta.reset:
            self.reset(delta.mark)
        else:
            self.skip_to(delta.mark)
        for index in delta.acknowledged:
            self.acknowledge(index)
        for index, bits in delta.partial:
            self.acknowledge_messages(index, bits)
        self._forget_changes()

    def acknowledged_chunks(self) -> Iterator[tuple[int, int]]:
        """(first entry, bits) of what is acknowledged above the mark, for a snapshot."""
        return self._acknowledged.chunks()

    def acknowledged_runs(self) -> Iterator[tuple[int, int]]:
        """(first, one past the last) of each run acknowledged above the mark, for people."""
        return self._acknowledged.runs()

    def partial_items(self) -> Iterable[tuple[int, int]]:
        """(entry, bits still unacknowledged) of each partly acknowledged entry, for a snapshot."""
        return self._partial.items()

    def restore_chunk(self, first: int, bits: int) -> None:
        """Add a chunk of a snapshot (recovery)."""
        below = self.mark - first
        if below > 0:
            bits = bits >> below << below
        self._acknowledged.add_bits(first, bits)
        self._advance(self.mark)
        for index in [index for index in self._partial if self.is_acknowledged(index)]:
            del self._partial[index]

    def restore_partial(self, index: int, bits: int) -> None:
        """Add a partly acknowledged entry of a snapshot (recovery)."""
        if not self.is_acknowledged(index):
            self._partial[index] = bits

    def _advance(self, mark: int) -> None:
        before = self.mark
        self.mark = self._acknowledged.pop_run(mark) if len(self._acknowledged) else mark
        assert self.mark >= before, "only a reset moves the mark back"  # I11

    def _drop_partial_below(self, mark: int) -> None:
        for index in [index for index in self._partial if index < mark]:
            del self._partial[index]

    def _forget_changes(self) -> None:
        self._changed = self._changed_reset = False
        self._changed_entries.clear()
        self._changed_partial.clear()
