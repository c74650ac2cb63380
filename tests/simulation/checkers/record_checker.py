"""Checks of every change of a ledger's or the topic's record: I5, I7, I8, I9, I10, I12 and I14."""

from __future__ import annotations

import itertools

from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.metadata.model import LedgerMetadata, LedgerState, TopicRecord
from tests.simulation.checkers.checkers import Checkers, LedgerHistory, write_set
from tests.simulation.cluster.store import Author, Change

WRITER, RECOVERY, REPAIR, DELETION = "WriterCore", "RecoveryCore", "RepairCore", "DeletionCore"


class RecordChecker:
    """Checks every change when it is stored, by what is on the disks and what clients were told."""

    def __init__(self, checkers: Checkers) -> None:
        self.checkers = checkers
        self.judge = checkers.judge
        checkers.store.on_change = self.on_change
        checkers.store.on_topic.append(self.on_topic)

    def on_topic(self, before: TopicRecord, after: TopicRecord) -> None:
        """Check that ledgers are appended to the list one at a time, and leave it at its head."""
        old = [info.ledger_id for info in before.ledgers]
        new = [info.ledger_id for info in after.ledgers]
        kept = [ledger_id for ledger_id in new if ledger_id in old]
        self.judge.require(not old or kept == old[len(old) - len(kept) :], "I14", f"the topic went from {old} to {new}")
        added = new[len(kept) :]
        self.judge.require(len(added) <= 1, "I12", f"the topic went from {old} to {new}")
        fresh = all(ledger_id > max(self.checkers.listed, default=0) for ledger_id in added)
        self.judge.require(fresh, "I12", f"the topic got {added} after {old}")
        self.checkers.listed.update(added)

    def on_change(self, change: Change) -> None:
        """Check a change of a ledger's record."""
        before, after, author = change.before, change.after, change.author
        require = self.judge.require
        if before is None:
            return
        name = f"ledger {before.ledger_id} by {author}"
        if after is None:
            listed = [info.ledger_id for info in self.checkers.store.topic().record.ledgers]
            require(before.ledger_id not in listed, "I14", f"{name}: deleted while the topic names it")
            return
        if before.is_closed:
            same = (before.last_entry_id, before.length, before.state) == (
                after.last_entry_id,
                after.length,
                after.state,
            )
            require(same, "I5", f"{name}: a closed ledger changed")
        went_back = (before.state, after.state) == (LedgerState.IN_RECOVERY, LedgerState.OPEN)
        require(not went_back, "I9", f"{name}: went back to OPEN")
        if author.core == WRITER:
            require(before.state is LedgerState.OPEN, "I9", f"{name}: a writer changed a ledger {before.state.value}")
        if author.core == RECOVERY and not after.is_closed:
            require(
                before.segments == after.segments, "I7", f"{name}: segments that others must not read yet are named"
            )
        if after.is_closed and not before.is_closed:
            self._check_close(name, author, before, after)
        self._check_segments(name, author, before, after)

    def _history(self, ledger_id: int) -> LedgerHistory:
        return self.checkers.ledgers.get(ledger_id, LedgerHistory())

    def _check_close(self, name: str, author: Author, before: LedgerMetadata, after: LedgerMetadata) -> None:
        history, end = self._history(after.ledger_id), after.last_entry_id
        require = self.judge.require
        require(end >= history.confirmed, "I5", f"{name}: closed at {end}, {history.confirmed} was confirmed")
        require(end >= history.shown, "I3", f"{name}: closed at {end}, {history.shown} was shown")
        length = sum(len(history.accepted.get(entry_id, b"")) for entry_id in range(end + 1))
        require(after.length == length, "I5", f"{name}: closed with length {after.length}, not {length}")
        if author.core == RECOVERY:
            denied = self.checkers.negatives[author.number, end + 1]
            # A place that had no bookie during the recovery cannot have the entry.
            asked = write_set(before, end + 1)
            needed = len(asked) - after.ack_quorum + 1
            require(len(denied) >= needed, "I7", f"{name}: closed at {end}, {sorted(denied)} denied the next entry")

    def _check_segments(self, name: str, author: Author, before: LedgerMetadata, after: LedgerMetadata) -> None:
        require = self.judge.require
        keys = [segment.first_entry_id for segment in after.segments]
        require(all(a < b for a, b in itertools.pairwise(keys)), "I8", f"{name}: segment keys {keys}")
        old = {segment.first_entry_id: segment.bookies for segment in before.segments}
        require(set(old) <= set(keys), "I8", f"{name}: a segment vanished")
        confirmed = self._history(after.ledger_id).confirmed
        for segment, following in itertools.zip_longest(after.segments, after.segments[1:]):
            first = segment.first_entry_id
            was = before.segment_of(first).bookies
            emptied = {new for new, old_name in zip(segment.bookies, was, strict=True) if new != old_name}
            emptied = set(filter(is_vacancy, emptied))
            require(not emptied, "I7", f"{name}: {emptied} took the place of bookies, which may have entries")
            if first not in old:
                is_above = first > confirmed or after.state is not LedgerState.OPEN
                require(is_above, "I8", f"{name}: segment {first} is below the LAC {confirmed}")
            elif old[first] != segment.bookies:
                end = (
                    following.first_entry_id - 1 if following else after.last_entry_id if after.is_closed else confirmed
                )
                end = end if author.core == REPAIR else min(end, confirmed)
                self._check_replaced(name, author, after, range(first, end + 1), old[first])

    def _check_replaced(
        self, name: str, author: Author, record: LedgerMetadata, entries: range, old: tuple[str, ...]
    ) -> None:
        """Check that the bookies that a changed segment names have its entries on disk (I1, I10)."""
        moved = {new for new, was in zip(record.segment_of(entries.start).bookies, old, strict=True) if new != was}
        for entry_id in entries:
            for bookie_id in moved.intersection(write_set(record, entry_id)):
                if author.core != REPAIR:
                    self.checkers.check_copies(record.ledger_id, entry_id)
                    continue
                bookie = self.checkers.bookies[bookie_id]
                may_lack = bookie.was_lost or (record.ledger_id, entry_id) in bookie.damaged
                has = may_lack or bookie.disk.holds(record.ledger_id, entry_id)
                text = f"{name}: {bookie_id} took over entry {entry_id} without holding it"
                self.judge.require(has, "I10", text)
