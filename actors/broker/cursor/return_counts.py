"""How often messages came back from their consumers, counted by entry and by message (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from typing_extensions import override

from heliograph.actors.broker.cursor.entry_numbers import EntryNumbers

REFUSAL_BITS = 8  # of the count of one message, which stops at the highest
_REFUSAL_MAX = (1 << REFUSAL_BITS) - 1
# Tables for ``bytes.translate``: a loop over the messages of a batch would hold the event loop for seconds (I24).
_OF_OTHERS = bytes(_REFUSAL_MAX * (digit == ord("0")) for digit in range(256))  # of a binary digit
_OF_NAMED = bytes(digit == ord("1") for digit in range(256))
_BELOW_MAX = bytes(count < _REFUSAL_MAX for count in range(256))  # of a count: what may be added
_ENTRY_BITS = 32  # of the count of an entry as a whole, below those of its messages
_ENTRY_MAX = (1 << _ENTRY_BITS) - 1
REDELIVERED_MAX = 200_000  # entries counted at a time: as many messages as may be pending (I15)
REFUSED_MAX = 20_000  # of these, while a message may be counted: 20 MB if the batches have 1,000 messages (I15)


class Counts(NamedTuple):
    """How often an entry came back as a whole, and its messages besides, ``REFUSAL_BITS`` bits for each."""

    entry: int
    messages: int


NO_COUNTS = Counts(0, 0)


class ReturnCounts(EntryNumbers):
    """The entries that came back, with their counts. A message came back as often as both of its counts together.

    Attributes:
        changed: entries counted since the last delta.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[int] = set()

    def of(self, index: int) -> Counts:
        if not self.count:  # of almost every subscription
            return NO_COUNTS
        number = self.get(index)
        return NO_COUNTS if number is None else _split(number)

    def add(self, index: int, bits: int) -> bool:
        """Count an entry once more, or its messages in ``bits``.

        With ``REDELIVERED_MAX`` entries counted (``REFUSED_MAX`` for messages), no further one is counted until one of
        them is acknowledged: the answer is False.
        """
        before = self.get(index) or 0
        is_known, limit = (before > _ENTRY_MAX, REFUSED_MAX) if bits else (before > 0, REDELIVERED_MAX)
        if not is_known and self.count >= limit:
            return False
        self.set(index, _more_refusals(before, bits) if bits else before + 1)
        self.changed.add(index)
        return True

    def restore_entry(self, index: int, count: int) -> None:
        """Set the count of an entry as a whole (recovery)."""
        self.set(index, (self.get(index) or 0) & ~_ENTRY_MAX | min(count, _ENTRY_MAX))

    def restore_messages(self, index: int, counts: int) -> None:
        self.set(index, (self.get(index) or 0) & _ENTRY_MAX | counts << _ENTRY_BITS)

    @override
    def clear(self) -> None:
        super().clear()
        self.changed.clear()

    def changes(self) -> tuple[tuple[int, Counts], ...]:
        """Return the changed entries that still have counts."""
        return tuple((index, counts) for index in self.changed if any(counts := self.of(index)))

    def items(self) -> Iterator[tuple[int, Counts]]:
        """Yield (entry, counts), for a snapshot. They may change between two steps."""
        for number in self.group_numbers():
            yield from ((index, _split(value)) for index, value in self.group(number))


def least_refused(refusals: int, bits: int) -> tuple[int, int]:
    """Return the messages among ``bits`` that came back least often, a bit each, and how often."""
    size = max(bits.bit_length(), -(-refusals.bit_length() // REFUSAL_BITS))
    others = f"{bits:0{size}b}".encode().translate(_OF_OTHERS)
    counts = (refusals | int.from_bytes(others, "big")).to_bytes(size, "big")
    least = min(counts)
    return int(counts.translate(bytes(b"01"[count == least] for count in range(256))), 2) & bits, least


def refused_alike(refusals: int, bits: int) -> tuple[int, int]:
    """Return the first of the messages among ``bits``, and those after it that came back as often without a gap, a bit
    each, and how often."""
    size = max(bits.bit_length(), -(-refusals.bit_length() // REFUSAL_BITS))
    times = refusals >> ((bits & -bits).bit_length() - 1) * REFUSAL_BITS & _REFUSAL_MAX
    counts = refusals.to_bytes(size, "big").translate(bytes(b"10"[count == times] for count in range(256)))
    other = int(counts, 2) & bits
    return bits & (other & -other) - 1 if other else bits, times


def _split(number: int) -> Counts:
    return Counts(number & _ENTRY_MAX, number >> _ENTRY_BITS)


def _more_refusals(number: int, bits: int) -> int:
    """Return the counts of an entry after a refusal of the messages in ``bits``."""
    refusals = number >> _ENTRY_BITS
    size = max(bits.bit_length(), -(-refusals.bit_length() // REFUSAL_BITS))
    named = int.from_bytes(f"{bits:0{size}b}".encode().translate(_OF_NAMED), "big")
    below = int.from_bytes(refusals.to_bytes(size, "big").translate(_BELOW_MAX), "big")
    return number + ((named & below) << _ENTRY_BITS)
