"""Verdicts that a set of answers proves: the LAC of a ledger, and the fate of one of its entries."""

from __future__ import annotations

import enum

from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.ledger.schedule import WriteSchedule
from heliograph.metadata.model import NO_ENTRY


class LacQuorum:
    """Answers to a LAC read of one segment's bookies, until they cover every possible ack quorum."""

    def __init__(self, schedule: WriteSchedule, vacant: int = 0) -> None:
        """
        Args:
            vacant: mask of the positions without a bookie. They know of no entry and take none, so they count as
                answered, and as fenced where that is asked.
        """
        assert not schedule.covers(vacant), "at least one bookie has to answer"  # I7
        self.last_add_confirmed = NO_ENTRY  # only grows (I2)
        self.entries: dict[int, LedgerEntry] = {}  # by id: entries that came with the answers
        self._schedule = schedule
        self._answered = vacant  # mask of positions
        self._usable = vacant  # mask of positions, a subset of ``_answered``

    @property
    def is_covered(self) -> bool:
        """Whether no ack quorum can be formed without a bookie that answered."""
        return self._schedule.covers(self._usable)

    @property
    def is_exhausted(self) -> bool:
        """Whether no further answer can come."""
        return self._answered == self._schedule.full_mask

    def on_answer(self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None) -> None:
        """Count one answer. Only the first one of a position counts.

        "No such ledger" and "no such entry" count as a LAC of -1: the bookie was reached, and has fenced the ledger if
        that was asked. So does a damaged entry.
        """
        bit = 1 << position
        assert bit & self._schedule.full_mask, "the bookie is a member of the ensemble"
        if self._answered & bit:
            return
        self._answered |= bit
        if reply in (Reply.OK, Reply.ABSENT, Reply.DAMAGED):
            self._usable |= bit
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
            if entry is not None and reply is Reply.OK:
                self.entries[entry.entry_id] = entry
        assert not self._usable & ~self._answered, "only a bookie that answered is usable"


class Verdict(enum.Enum):
    """A recovery's knowledge of one entry."""

    PENDING = "pending"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class EntryVerdict:
    """Answers to the fencing reads of one entry.

    One valid copy proves that the entry exists. Qw - Qa + 1 explicit negatives prove that it was never confirmed. Each
    of these bookies fenced the ledger before it answered, so the entry never will be confirmed. Nothing else proves
    anything (I7). A vacant position is a negative: the entry was never sent there and never will be, because a segment
    of a ledger in recovery does not change.
    """

    __slots__ = ("_answered", "_negatives", "_schedule", "_write_set", "entry")

    def __init__(self, schedule: WriteSchedule, entry_id: int, vacant: int = 0) -> None:
        """
        Args:
            vacant: mask of the positions of the entry's segment that have no bookie.
        """
        self.entry: LedgerEntry | None = None
        self._schedule = schedule
        self._write_set = schedule.mask(entry_id)
        self._answered = vacant & self._write_set  # mask of positions, a subset of ``_write_set``
        self._negatives = self._answered.bit_count()
        assert self._negatives < schedule.negatives_needed, "at least one bookie has to deny the entry"  # I7

    @property
    def verdict(self) -> Verdict:
        if self.entry is not None:
            return Verdict.PRESENT
        if self._negatives >= self._schedule.negatives_needed:  # I7
            return Verdict.ABSENT
        return Verdict.UNKNOWN if self.is_exhausted else Verdict.PENDING

    @property
    def is_exhausted(self) -> bool:
        """Whether no further answer can come."""
        return self._answered == self._write_set

    def on_answer(self, position: int, reply: Reply, entry: LedgerEntry | None) -> None:
        """Count one answer. Only the first one of a position counts, and a copy found after ABSENT changes nothing."""
        bit = 1 << position
        if self._answered & bit or not self._write_set & bit:
            return
        before = self.verdict
        self._answered |= bit
        if self._negatives >= self._schedule.negatives_needed:
            return
        if reply is Reply.OK and entry is not None:
            self.entry = self.entry or entry
        elif reply is Reply.ABSENT:
            self._negatives += 1
        assert self._negatives <= self._answered.bit_count(), "a position has one vote"  # I7
        assert before is Verdict.PENDING or self.verdict is before, "a verdict stands"  # I7
