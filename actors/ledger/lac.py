"""Learning the LAC of a ledger that somebody else writes, without fencing it."""

from __future__ import annotations

from actors.errors import QuorumLostError
from actors.ledger.effects import Effect, Failed, LacFound, LedgerEntry, PollLac, ReadLac, Reply
from actors.ledger.health import BookieHealth
from actors.ledger.schedule import WriteSchedule
from actors.ledger.verdict import LacQuorum
from metadata.model import LedgerMetadata


class LacReadCore:
    """Ask all bookies of the last segment; every confirmed entry is known to any covering set of them.

    It ends in LacFound, at least the last entry before the segment (I3: a confirmed one), or in Failed.
    """

    def __init__(self, record: LedgerMetadata) -> None:
        self.is_done = False
        self._record = record
        schedule = WriteSchedule(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._lacs = LacQuorum(schedule)

    def start(self, now: int) -> list[Effect]:
        """Ask them all."""
        return [ReadLac(self._record.ledger_id, tuple(enumerate(self._record.last_segment.bookies)), fence=False)]

    def on_lac_answer(
        self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        """A bookie answered, or will not."""
        if self.is_done:
            return []
        self._lacs.on_answer(position, reply, last_add_confirmed, entry)
        if self._lacs.is_covered:
            self.is_done = True
            return [LacFound(max(self._lacs.last_add_confirmed, self._record.last_segment.first_entry_id - 1))]
        if self._lacs.is_exhausted:
            self.is_done = True
            return [Failed(QuorumLostError(f"too few bookies of ledger {self._record.ledger_id} answered"))]
        return []

    def tick(self, now: int) -> list[Effect]:
        """Nothing is done by time alone: every request is answered in the end."""
        return []


class LacPollCore:
    """Wait at one bookie until its LAC passes ``after``; move to the next one if it fails.

    It ends in LacFound, with ``after`` when nothing new came in time, or in Failed when no bookie answered.
    """

    def __init__(self, record: LedgerMetadata, after: int, wait_ms: int, health: BookieHealth, turn: int = 0) -> None:
        """``turn``: counts the polls of one wait, each of which begins at another bookie: one may not hear of news."""
        self.is_done = False
        self._record = record
        self._after = after
        self._wait_ms = wait_ms
        self._health = health
        self._turn = turn
        self._targets: list[tuple[int, str]] = []

    def start(self, now: int) -> list[Effect]:
        """Ask the first bookie."""
        bookies = self._record.last_segment.bookies
        order = self._health.order(bookies, self._record.ledger_id + self._turn, now)
        self._targets = [(bookies.index(bookie_id), bookie_id) for bookie_id in order]
        return self._ask()

    def on_lac_answer(
        self, position: int, reply: Reply, last_add_confirmed: int, entry: LedgerEntry | None, now: int
    ) -> list[Effect]:
        """The bookie answered, or will not."""
        if self.is_done or not self._targets or self._targets[0][0] != position:
            return []
        if reply in (Reply.OK, Reply.ABSENT):
            self.is_done = True
            return [LacFound(max(self._after, last_add_confirmed))]
        self._health.note_failure(self._targets.pop(0)[1], now)
        return self._ask()

    def tick(self, now: int) -> list[Effect]:
        """Nothing is done by time alone: every request is answered in the end."""
        return []

    def _ask(self) -> list[Effect]:
        if not self._targets:
            self.is_done = True
            return [Failed(QuorumLostError(f"no bookie of ledger {self._record.ledger_id} answered"))]
        return [PollLac(self._record.ledger_id, self._targets[0], self._after, self._wait_ms)]
