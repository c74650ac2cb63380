"""The acknowledged positions of one subscription (pure).

The state has three parts: the *mark* (every entry below it is acknowledged), the single entries acknowledged above the
mark, and for entries of which only some messages are acknowledged a bitset. Entries are named by index
(``actors/broker/managed_ledger/chain.py``). Beside it stands how often each unacknowledged entry, and each of its
messages, was given back, and how often it was lost with a consumer.

The mark moves over an entry only when that entry is acknowledged, or by ``reset`` and ``skip_to``, which are the
explicit exceptions of I11. Every change is also noted in a *delta*, so that the cost of making an acknowledgement
durable does not depend on the number of holes.

The cursor also counts the acknowledged messages, on the scale of ``TopicEntry.counted``, so that a backlog in messages
is a subtraction. An acknowledgement comes with the number of the entry's messages. If that is not known, or the mark
jumps, the count is lost until ``begin_count`` and ``end_count`` restore it
(``actors/broker/subscription/message_count.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from heliograph.actors.broker.cursor.entry_numbers import EntryNumbers
from heliograph.actors.broker.cursor.index_set import IndexSet
from heliograph.actors.broker.cursor.return_counts import NO_COUNTS, Counts, ReturnCounts

_NEVER = (NO_COUNTS, NO_COUNTS, NO_COUNTS)


class CursorDelta(NamedTuple):
    """The changes since the previous delta. All deltas, applied in order to the state before the first of them, give
    the state after the last."""

    reset: bool  # a seek: the state before is void
    mark: int
    acknowledged: tuple[int, ...]  # entries that were above the mark, in no order; some may be below it now
    partial: tuple[tuple[int, int], ...]  # (entry, bits of the messages still unacknowledged)
    refused: tuple[tuple[int, Counts], ...]  # (entry, how often it was given back)
    crashed: tuple[tuple[int, Counts], ...] = ()  # (entry, how often it was lost with a consumer)
    messages: int | None = None  # ``acknowledged_messages`` after the delta
    crashed_alone: tuple[tuple[int, Counts], ...] = ()  # of ``crashed``: its consumer had nothing else in hand


class Cursor:
    """The acknowledgement state of a subscription.

    Attributes:
        mark: the first entry that is not acknowledged. Only ``reset`` moves it back (I11).
        refused: how often entries and messages were given back; at or above the mark, none acknowledged.
        crashed: the same for those that were lost with a consumer.
        crashed_alone: of these, for those that were all that the consumer had in hand.
        resets: how often ``reset`` was called.
    """

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self._acknowledged = IndexSet()  # all above the mark
        self._partial = EntryNumbers()  # bits; at or above the mark, none acknowledged
        self.refused = ReturnCounts()
        self.crashed = ReturnCounts()
        self.crashed_alone = ReturnCounts()
        self._counts = (self.refused, self.crashed, self.crashed_alone)
        self.resets = 0
        self._messages_before: int | None = None  # acknowledged up to the last count; None: not known
        self._messages_since: int | None = None  # and since it began; None: not known
        self._count = 0  # the number of the last count
        self._changed = False
        self._changed_reset = False
        self._changed_counts = False  # ``changed`` of one of ``_counts`` is not empty
        self._changed_entries: list[int] = []
        self._changed_partial: set[int] = set()

    @property
    def holes(self) -> int:
        """Return how many unbroken runs of acknowledged entries are above the mark."""
        return self._acknowledged.run_count

    @property
    def acknowledged_above_mark(self) -> int:
        return self._acknowledged.count

    @property
    def partial_count(self) -> int:
        """Return how many entries are partly acknowledged."""
        return self._partial.count

    @property
    def has_changes(self) -> bool:
        """Return whether ``take_delta`` would return a delta."""
        return self._changed

    @property
    def changes(self) -> int:
        counts = (len(one.changed) for one in self._counts)
        return len(self._changed_entries) + len(self._changed_partial) + sum(counts)

    @property
    def acknowledged_messages(self) -> int | None:
        """Return how many messages of the topic are acknowledged, None if that is not known."""
        before, since = self._messages_before, self._messages_since
        return None if before is None or since is None else before + since

    def begin_count(self) -> int:
        """Count the messages that are acknowledged from now on apart from those of before. Return a number for
        ``end_count``."""
        self._messages_before, self._messages_since = None, 0
        self._count += 1
        return self._count

    def end_count(self, number: int, messages: int) -> None:
        """Set how many messages were acknowledged when ``begin_count`` returned ``number``. Do nothing if another count
        was begun since."""
        if number == self._count:
            self._messages_before = messages

    def forget_count(self) -> None:
        """Note that messages are acknowledged whose number is not known."""
        self._messages_since = None

    def restore_messages(self, messages: int) -> None:
        """Set how many messages are acknowledged, as the record says that was just applied (recovery)."""
        self._messages_before, self._messages_since = messages, 0

    def is_acknowledged(self, index: int) -> bool:
        return index < self.mark or index in self._acknowledged

    def unacknowledged_bits(self, index: int) -> int | None:
        """Return the messages of a batch still unacknowledged as bits, None for an entry without acknowledged
        messages."""
        return self._partial.get(index)

    def next_unacknowledged(self, index: int) -> int:
        """Return the first entry at or above ``index`` that is not acknowledged; it may be after the end of the
        topic."""
        return self._acknowledged.next_missing(max(index, self.mark))

    def after_open(self, count: int) -> int:
        """Return the index after the next ``count`` entries that are not acknowledged; it may be after the end of the
        topic."""
        return self._acknowledged.after_missing(self.mark, count)

    def backlog(self, end: int) -> int:
        return max(end - self.mark - self._acknowledged.count, 0)

    def acknowledge(self, index: int, messages: int | None = None) -> bool:
        """Acknowledge one entry. Return False if it was acknowledged before.

        Args:
            messages: how many messages it has, None if that is not known. Of a partly acknowledged one it does not
                matter.
        """
        if index < self.mark or (index != self.mark and not self._acknowledged.add(index)):
            return False
        self._changed = True
        if self._partial.count:
            left = self._partial.get(index)
            if left is not None:
                messages = left.bit_count()
                self._partial.discard(index)
        if self._messages_since is not None:
            self._messages_since = None if messages is None else self._messages_since + messages
        if self.refused.count:
            self.refused.discard(index)
        if self.crashed.count:  # what crashed alone is in both
            self.crashed.discard(index)
            self.crashed_alone.discard(index)
        if index == self.mark:
            self._advance(index + 1)
        else:
            self._changed_entries.append(index)
        return True

    def acknowledge_messages(self, index: int, unacknowledged: int, messages: int | None = None) -> bool:
        """Acknowledge some messages of a batch: those whose bit in ``unacknowledged`` is 0.

        Args:
            messages: as that of ``acknowledge``.

        Returns:
            True if this call makes the whole entry acknowledged.
        """
        if self.is_acknowledged(index):
            return False
        assert unacknowledged >= 0, "a bit for each message"
        before = self._partial.get(index) if self._messages_since is not None else None
        if before is not None:
            messages = before.bit_count()
        left = self._partial.narrow(index, unacknowledged)
        if left == 0:
            return self.acknowledge(index, messages)
        if left > 0:
            if self._messages_since is not None:
                gone = None if messages is None else messages - left.bit_count()
                self._messages_since = None if gone is None else self._messages_since + gone
            self._changed_partial.add(index)
            self._changed = True
        return False

    def skip_to(self, mark: int) -> bool:
        """Move the mark forward: everything below counts as acknowledged (cumulative acknowledgement, skip, expiry,
        eviction). Return False if the mark is there already."""
        if mark <= self.mark:
            return False
        self._changed = True
        self._messages_since = None
        self._acknowledged.drop_range(self.mark, mark)
        if self._partial.count:
            self._partial.drop_range(self.mark, mark)
        for counts in self._counts:
            if counts.count:
                counts.drop_range(self.mark, mark)
        self._advance(mark)
        return True

    def count_redelivery(self, index: int, bits: int = 0) -> None:
        """Note that a consumer gave back an entry, or its messages in ``bits``."""
        if not self.is_acknowledged(index) and self.refused.add(index, bits):
            self._changed = self._changed_counts = True

    def count_crash(self, index: int, bits: int = 0) -> None:
        """Note that an entry, or its messages in ``bits``, was lost with its consumer."""
        if not self.is_acknowledged(index) and self.crashed.add(index, bits):
            self._changed = self._changed_counts = True

    def count_crash_alone(self, index: int, bits: int = 0) -> None:
        """Note that a message, which ``count_crash`` has counted, was all that its consumer had in hand."""
        if not self.is_acknowledged(index) and any(self.crashed.of(index)) and self.crashed_alone.add(index, bits):
            self._changed = self._changed_counts = True

    def counts_of(self, index: int) -> tuple[Counts, Counts, Counts]:
        """Return how often an entry was refused, crashed, and crashed alone."""
        if not (self.refused.count or self.crashed.count):  # of almost every subscription
            return _NEVER
        return self.refused.of(index), self.crashed.of(index), self.crashed_alone.of(index)

    def reset(self, mark: int) -> None:
        """Seek: forget every acknowledgement at and above ``mark``; everything below counts as acknowledged."""
        assert mark >= 0, "indexes begin at 0"
        self.mark = mark
        self._messages_since = None
        self._acknowledged.clear()
        self._partial.clear()
        for counts in self._counts:
            counts.clear()
        self._forget_changes()
        self.resets += 1
        self._changed = self._changed_reset = True

    def take_delta(self) -> CursorDelta | None:
        """Return everything that changed since the last call, or None."""
        if not self._changed:
            return None
        is_counted = self._changed_counts
        delta = CursorDelta(
            self._changed_reset,
            self.mark,
            tuple(self._changed_entries),
            _numbers(self._partial, self._changed_partial) if self._changed_partial else (),
            self.refused.changes() if is_counted else (),
            self.crashed.changes() if is_counted else (),
            self.acknowledged_messages,
            self.crashed_alone.changes() if is_counted else (),
        )
        self._forget_changes()
        assert not self._changed, "a change is taken once"
        return delta

    def restore_mark(self, mark: int, *, is_reset: bool) -> None:
        """Begin to replay a record that was made durable (recovery). It is not noted as a change."""
        assert not self._changed, "recovery comes before use"
        self._messages_since = None
        if is_reset:
            self.reset(mark)
        else:
            self.skip_to(mark)
        self._forget_changes()

    def acknowledged_chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the acknowledged entries above the mark as (first entry, bits), in no order, for a snapshot.

        The cursor may change between two steps. Positions that were acknowledged before the first and are not
        yielded are below the mark then (I11), unless ``resets`` changed.
        """
        return (
            chunk for number in self._acknowledged.chunk_numbers() if (chunk := self._acknowledged.chunk(number))[1]
        )

    def acknowledged_runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of acknowledged entries above the mark as (first, one past the last), for display."""
        return self._acknowledged.runs()

    def partial_items(self) -> Iterator[tuple[int, int]]:
        """Yield the partly acknowledged entries as (entry, bits still unacknowledged), for a snapshot.

        The cursor may change between two steps. An entry that was partly acknowledged before the first and is not
        yielded is acknowledged as a whole then, so ``acknowledged_chunks`` has to come after this (I11).
        """
        for number in self._partial.group_numbers():
            yield from self._partial.group(number)

    def restore_chunk(self, first: int, bits: int) -> None:
        """Add a chunk of a snapshot (recovery). The cost depends on the chunk alone."""
        below = self.mark - first
        if below > 0:
            bits = bits >> below << below
        if bits:
            self._acknowledged.add_bits(first, bits)
            if self._partial.count:
                self._partial.drop_bits(first, bits)
            for counts in self._counts:
                if counts.count:
                    counts.drop_bits(first, bits)
            self._advance(self.mark)

    def restore_partial(self, index: int, bits: int) -> None:
        """Add a partly acknowledged entry of a snapshot (recovery)."""
        if not self.is_acknowledged(index):
            self._partial.set(index, bits)

    def restore_counts(self, index: int, number: int, restore: Callable[[int, int], None]) -> None:
        """Restore a count of ``refused`` or ``crashed`` (recovery)."""
        if not self.is_acknowledged(index):
            restore(index, number)

    def _advance(self, mark: int) -> None:
        before = self.mark
        self.mark = self._acknowledged.pop_run(mark) if self._acknowledged.count else mark
        assert self.mark >= before, "only a reset moves the mark back"  # I11

    def _forget_changes(self) -> None:
        self._changed = self._changed_reset = False
        self._changed_entries.clear()
        self._changed_partial.clear()
        if self._changed_counts:
            self._changed_counts = False
            for counts in self._counts:
                counts.changed.clear()


def _numbers(numbers: EntryNumbers, changed: set[int]) -> tuple[tuple[int, int], ...]:
    """Return the changed entries that still have a number, with it."""
    found = ((index, numbers.get(index)) for index in changed)
    return tuple((index, number) for index, number in found if number is not None)
