"""Reading the LAC of a ledger that another client writes, without fencing it."""

from __future__ import annotations

from heliograph.actors.errors import QuorumLostError
from heliograph.actors.ledger.effects import Effect, Failed, LacFound, LedgerEntry, ReadLac, Reply
from heliograph.actors.ledger.schedule import WriteSchedule, occupied, vacancies_of
from heliograph.actors.ledger.verdict import LacQuorum
from heliograph.metadata.model import LedgerMetadata


class LacReadCore:
    """State machine of one LAC read: ask all bookies of the last segment until every ack quorum is covered.

    Every confirmed entry is known to any covering set of bookies. The read ends in LacFound, with a LAC of at least
    the last entry before the segment, or in Failed.
    """

    def __init__(self, record: LedgerMetadata) -> None:
        self.is_done = False
        self._record = record
        schedule = WriteSchedule(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._lacs = LacQuorum(schedule, vacancies_of(record.last_segment.bookies))

    def start(self, now: int) -> list[Effect]:
        """Ask every bookie of the last segment."""
        assert not self.is_done, "a core starts once"
        return [ReadLac(self._record.ledger_id, occupied(enumerate(self._record.last_segment.bookies)), fence=False)]

    def on_lac_answer(
        self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        """Take the answer of a bookie, or the lack of one."""
        if self.is_done:
            return []
        self._lacs.on_answer(position, reply, last_add_confirmed, entry)
        if self._lacs.is_covered:
            self.is_done = True
            floor = self._record.last_segment.first_entry_id - 1  # a segment starts after what its writer had confirmed
            found = max(self._lacs.last_add_confirmed, floor)
            assert found >= floor, "the LAC never goes back"  # I2, I3
            return [LacFound(found)]
        if self._lacs.is_exhausted:
            self.is_done = True
            return [Failed(QuorumLostError(f"too few bookies of ledger {self._record.ledger_id} answered"))]
        return []

    def tick(self, now: int) -> list[Effect]:
        """Do nothing: every request is answered in the end, by the driver if not by the bookie."""
        return []
