"""One compare-and-set of a ledger's record, carried through conflicts and lost replies (I9).

A change is a function from the record as it stands to the record wanted. It returns None when nothing is left to do,
and raises a HeliographError when the record is in a state that it may not act on. It is evaluated again on every
re-read, so a write whose reply was lost shows up as "nothing left to do".
"""

from __future__ import annotations

from collections.abc import Callable

from actors.errors import NoSuchLedgerError
from actors.ledger.effects import Effect, ReadMetadata, WriteMetadata
from actors.ledger.limits import MetadataLimits
from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError
from metadata.model import LedgerMetadata, Versioned

Change = Callable[[LedgerMetadata], LedgerMetadata | None]


class MetadataChange:
    """The owner's view of the record, and at most one change under way.

    After every event the owner looks at ``outcome``: None while under way, the record as stored once the change is
    done, or the error that ended it. ``begin`` while a change is under way abandons that one: its write may or may
    not land, and the version keeps either from undoing the other.
    """

    def __init__(self, current: Versioned[LedgerMetadata], limits: MetadataLimits) -> None:
        self.current = current
        self.outcome: Versioned[LedgerMetadata] | HeliographError | None = None
        self._limits = limits
        self._change: Change | None = None
        self._wanted: LedgerMetadata | None = None
        self._request = 0  # the only request whose answer counts
        self._retry_at: int | None = None
        self._deadline = 0

    @property
    def is_active(self) -> bool:
        """Whether a change is under way."""
        return self._change is not None

    def begin(self, change: Change, now: int) -> list[Effect]:
        """Start a change from the record as last seen."""
        self._change = change
        self._wanted = None
        self._retry_at = None
        self.outcome = None
        self._deadline = now + self._limits.wait_ms
        return self._attempt()

    def abandon(self) -> None:
        """Forget the change under way; its answers are dropped."""
        self._change = None
        self._wanted = None
        self._retry_at = None
        self._request += 1

    def on_written(self, request: int, version: int) -> list[Effect]:
        """The write landed; adopt it (never before: persist, then use)."""  # I8
        if not self._awaits(request) or self._wanted is None:
            return []
        assert version > self.current.version, "versions grow with every write"
        self.current = Versioned(self._wanted, version)
        self._finish(self.current)
        return []

    def on_conflict(self, request: int) -> list[Effect]:
        """Somebody else wrote first: nothing of ours was stored by this request."""
        return self._read() if self._awaits(request) else []

    def on_missing(self, request: int) -> list[Effect]:
        """The ledger was deleted."""
        if self._awaits(request):
            self._finish(NoSuchLedgerError(f"ledger {self.current.record.ledger_id} is not in metadata"))
        return []

    def on_refused(self, request: int, error: HeliographError) -> list[Effect]:
        """The request was not done, and trying again is of no use."""
        if self._awaits(request):
            self._finish(error)
        return []

    def on_unknown(self, request: int, now: int) -> list[Effect]:
        """The request may or may not have happened; look again after a pause."""
        if self._awaits(request) and self._retry_at is None:
            self._wanted = None
            self._retry_at = now + self._limits.retry_ms
        return []

    def on_read(self, request: int, versioned: Versioned[LedgerMetadata]) -> list[Effect]:
        """The record as it stands; try again on it."""
        if not self._awaits(request) or self._wanted is not None:
            return []
        if versioned.version < self.current.version:  # an old answer: a newer value is never overwritten by it
            return self._read()
        self.current = versioned
        return self._attempt()

    def tick(self, now: int) -> list[Effect]:
        """Give up at the deadline, or look again after a pause."""
        if self._change is None:
            return []
        if now >= self._deadline:
            self._finish(ConnectionLossError("the metadata store gave no answer in time; the outcome is unknown"))
            return []
        if self._retry_at is not None and now >= self._retry_at:
            return self._read()
        return []

    def _awaits(self, request: int) -> bool:
        return self._change is not None and request == self._request

    def _attempt(self) -> list[Effect]:
        assert self._change is not None, "an attempt belongs to a change"
        try:
            wanted = self._change(self.current.record)
        except HeliographError as error:
            self._finish(error)
            return []
        if wanted is None:
            self._finish(self.current)
            return []
        self._request += 1
        self._wanted = wanted
        return [WriteMetadata(self._request, wanted, self.current.version)]

    def _read(self) -> list[Effect]:
        self._request += 1
        self._wanted = None
        self._retry_at = None
        return [ReadMetadata(self._request, self.current.record.ledger_id)]

    def _finish(self, outcome: Versioned[LedgerMetadata] | HeliographError) -> None:
        self.outcome = outcome
        self._change = None
        self._wanted = None
        self._retry_at = None
