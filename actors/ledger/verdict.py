"""What a set of answers proves: about the LAC of a ledger, and about one entry of it."""

from __future__ import annotations

import enum

from actors.ledger.effects import LedgerEntry, Reply
from actors.ledger.schedule import WriteSchedule
from metadata.model import NO_ENTRY


class LacQuorum:
    """Answers to a LAC read of one segment's bookies, until they cover every possible ack quorum."""

    def __init__(self, schedule: WriteSchedule) -> None:
        self.last_add_confirmed = NO_ENTRY
        self.entries: dict[int, LedgerEntry] = {}  # whole entries that came along, by id
        self._schedule = schedule
        self._answered = 0
        self._usable = 0

    @property
    def is_covered(self) -> bool:
        """Whether no ack quorum can be formed without a bookie that was heard."""
        return self._schedule.covers(self._usable)

    @property
    def is_exhausted(self) -> bool:
        """Whether no further answer can come."""
        return self._answered == self._schedule.full_mask

    def on_answer(self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None) -> None:
        """Count one answer; the first of a position counts.

        "No such ledger" and "no such entry" are as good as a LAC of -1: the bookie was reached, and is fenced if that
        was asked. A damaged entry still came from a bookie that was reached.
        """
        bit = 1 << position
        if self._answered & bit:
            return
        self._answered |= bit
        if reply in (Reply.OK, Reply.ABSENT, Reply.DAMAGED):
            self._usable |= bit
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
            if entry is not None and reply is Reply.OK:
                self.entries[entry.entry_id] = entry


class Verdict(enum.Enum):
    """On one entry, in a recovery."""

    PENDING = "pending"
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class EntryVerdict:
    """Answers to the fencing reads of one entry.

    One valid copy proves that the entry exists; Qw - Qa + 1 explicit negatives prove that it was never confirmed and,
    each bookie having fenced the ledger before it answered, never will be. Nothing else proves anything (I7).
    """

    __slots__ = ("_answered", "_negatives", "_schedule", "_write_set", "entry")

    def __init__(self, schedule: WriteSchedule, entry_id: int) -> None:
        self.entry: LedgerEntry | None = None
        self._schedule = schedule
        self._write_set = schedule.mask(entry_id)
        self._answered = 0
        self._negatives = 0

    @property
    def verdict(self) -> Verdict:
        """As far as the answers go."""
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
        """Count one answer; the first of a position counts, and a copy that turns up after ABSENT changes nothing."""
        bit = 1 << position
        if self._answered & bit or not self._write_set & bit:
            return
        self._answered |= bit
        if self._negatives >= self._schedule.negatives_needed:
            return
        if reply is Reply.OK and entry is not None:
            self.entry = self.entry or entry
        elif reply is Reply.ABSENT:
            self._negatives += 1
