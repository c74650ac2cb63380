"""One compare-and-set of a ledger's record, carried through conflicts and lost replies (I9).

A change is a function from the current record to the wanted one. It returns None when nothing is left to do, and
raises a HeliographError when it may not act on the record's state. It is evaluated again after every re-read, so a
write whose reply was lost is found to be done already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from heliograph.actors.errors import NoSuchLedgerError
from heliograph.actors.ledger.effects import Effect, ReadMetadata, WriteMetadata
from heliograph.actors.ledger.limits import MetadataLimits
from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import LedgerMetadata, Versioned

Change = Callable[[LedgerMetadata], LedgerMetadata | None]


class MetadataChange:
    """The owner's copy of the record, and at most one change under way.

    After every event the owner reads ``outcome``. It is None while the change is under way, then the record as stored
    or the error that ended the change. ``begin`` during a change abandons that change: its write may still land, and
    the version check keeps the two from undoing each other.
    """

    def __init__(self, current: Versioned[LedgerMetadata], limits: MetadataLimits) -> None:
        self.current = current  # its version only grows
        self.outcome: Versioned[LedgerMetadata] | HeliographError | None = None  # None while ``is_active``
        self._limits = limits
        self._change: Change | None = None
        self._wanted: LedgerMetadata | None = None  # what the write under way stores; None during a read or a pause
        self._request = 0  # the only request whose answer counts
        self._retry_at: int | None = None
        self._deadline = 0

    @property
    def is_active(self) -> bool:
        return self._change is not None

    def begin(self, change: Change, now: int) -> list[Effect]:
        """Start a change from the record as last seen."""
        self._change = change
        self._wanted = None
        self._retry_at = None
        self.outcome = None
        self._deadline = now + self._limits.wait_ms
        effects = self._attempt()
        assert self.is_active == (self.outcome is None), "a change is under way or has an outcome"
        return effects

    def abandon(self) -> None:
        """Forget the change under way. Its answers are ignored."""
        self._change = None
        self._wanted = None
        self._retry_at = None
        self._request += 1

    def on_written(self, request: int, version: int) -> list[Effect]:
        """Adopt the record that was written. It is never used before this (I8)."""
        if not self._awaits(request) or self._wanted is None:
            return []
        assert version > self.current.version, "versions grow with every write"
        self.current = Versioned(self._wanted, version)
        self._finish(self.current)
        return []

    def on_conflict(self, request: int) -> list[Effect]:
        """Read the record again: another client wrote it first, and this request stored nothing."""
        return self._read() if self._awaits(request) else []

    def on_missing(self, request: int) -> list[Effect]:
        """End with NoSuchLedgerError: the ledger was deleted."""
        if self._awaits(request):
            self._finish(NoSuchLedgerError(f"ledger {self.current.record.ledger_id} is not in metadata"))
        return []

    def on_refused(self, request: int, error: HeliographError) -> list[Effect]:
        """End with ``error``: the store did not do the request, and a retry cannot help."""
        if self._awaits(request):
            self._finish(error)
        return []

    def on_unknown(self, request: int, now: int) -> list[Effect]:
        """Read the record again after a pause: the request may or may not have happened."""
        if self._awaits(request) and self._retry_at is None:
            self._wanted = None
            self._retry_at = now + self._limits.retry_ms
        return []

    def on_read(self, request: int, versioned: Versioned[LedgerMetadata]) -> list[Effect]:
        """Try the change again on the record as read."""
        if not self._awaits(request) or self._wanted is not None:
            return []
        if versioned.version < self.current.version:  # an old answer: a newer value is never overwritten by it
            return self._read()
        assert versioned.record.ledger_id == self.current.record.ledger_id, "the answer is about this ledger"
        self.current = versioned
        return self._attempt()

    def tick(self, now: int) -> list[Effect]:
        """End the change at its deadline, or read the record again after a pause."""
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
        record = self.current.record
        try:
            wanted = self._change(record)
        except HeliographError as error:
            self._finish(error)
            return []
        if wanted is None:
            self._finish(self.current)
            return []
        assert wanted != record, "a change that has nothing to do returns None"  # I9
        assert wanted.ledger_id == record.ledger_id, "a change keeps the ledger's id"
        self._request += 1
        self._wanted = wanted
        return [WriteMetadata(self._request, wanted, self.current.version)]

    def _read(self) -> list[Effect]:
        assert self._change is not None, "a read belongs to a change"
        self._request += 1
        self._wanted = None
        self._retry_at = None
        return [ReadMetadata(self._request, self.current.record.ledger_id)]

    def _finish(self, outcome: Versioned[LedgerMetadata] | HeliographError) -> None:
        assert self._change is not None, "a change ends once"
        assert self.outcome is None, "the owner took the previous outcome"
        self.outcome = outcome
        self._change = None
        self._wanted = None
        self._retry_at = None


class MetadataCore(ABC):
    """Base of the cores that change their ledger's record: writer, recovery, repair.

    It passes the answers to metadata requests to ``_metadata`` and lets the core act on the outcome.
    """

    _metadata: MetadataChange

    @abstractmethod
    def _after_metadata(self, now: int) -> list[Effect]:
        """Act on the outcome of the change under way, if there is one."""

    def on_metadata_written(self, request: int, version: int, now: int) -> list[Effect]:
        """Take the answer to a WriteMetadata: the record is stored."""
        return self._metadata.on_written(request, version) + self._after_metadata(now)

    def on_metadata_conflict(self, request: int, now: int) -> list[Effect]:
        """Take the answer to a WriteMetadata: the record has another version, and nothing was written."""
        return self._metadata.on_conflict(request) + self._after_metadata(now)

    def on_metadata_missing(self, request: int, now: int) -> list[Effect]:
        """Take the answer to a metadata request: the store has no such ledger."""
        return self._metadata.on_missing(request) + self._after_metadata(now)

    def on_metadata_refused(self, request: int, error: HeliographError, now: int) -> list[Effect]:
        """Take the answer to a metadata request: it cannot be done, now or later."""
        return self._metadata.on_refused(request, error) + self._after_metadata(now)

    def on_metadata_unknown(self, request: int, now: int) -> list[Effect]:
        """Take the lack of an answer: the request may or may not have happened."""
        return self._metadata.on_unknown(request, now) + self._after_metadata(now)

    def on_metadata_read(self, request: int, versioned: Versioned[LedgerMetadata], now: int) -> list[Effect]:
        """Take the answer to a ReadMetadata: the record as it is now."""
        return self._metadata.on_read(request, versioned) + self._after_metadata(now)
