"""Deletion of a ledger: its record is deleted, whatever its version, and bookies find out by comparing (I14)."""

from __future__ import annotations

from heliograph.actors.ledger.effects import Deleted, DeleteMetadata, Effect, Failed
from heliograph.actors.ledger.limits import MetadataLimits
from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError


class DeletionCore:
    """State machine of one deletion. It may be repeated: a ledger that is gone counts as deleted."""

    def __init__(self, ledger_id: int, limits: MetadataLimits | None = None) -> None:
        self.is_done = False
        self._ledger_id = ledger_id
        self._limits = limits or MetadataLimits()
        self._request = 0
        self._retry_at: int | None = None
        self._deadline = 0

    def start(self, now: int) -> list[Effect]:
        """Send the first request."""
        self._deadline = now + self._limits.wait_ms
        return self._ask()

    def on_metadata_deleted(self, request: int, now: int) -> list[Effect]:
        """Take the answer that there is no such record now."""
        if self.is_done:
            return []
        assert 0 < request <= self._request, "only a request that was sent is answered"
        self.is_done = True
        return [Deleted()]

    def on_metadata_refused(self, request: int, error: HeliographError, now: int) -> list[Effect]:
        """Take the answer that the store will not do it, now or later."""
        if self.is_done:
            return []
        self.is_done = True
        return [Failed(error)]

    def on_metadata_unknown(self, request: int, now: int) -> list[Effect]:
        """Try again after a pause: the store did not answer."""
        if not self.is_done and request == self._request:
            self._retry_at = now + self._limits.retry_ms
        return []

    def tick(self, now: int) -> list[Effect]:
        """Act on the passing of time. Call at least every 100 ms."""
        if self.is_done:
            return []
        if now >= self._deadline:
            self.is_done = True
            return [Failed(ConnectionLossError(f"ledger {self._ledger_id} may or may not be deleted"))]
        return self._ask() if self._retry_at is not None and now >= self._retry_at else []

    def _ask(self) -> list[Effect]:
        assert not self.is_done, "nothing is asked after the end"
        self._retry_at = None
        self._request += 1
        return [DeleteMetadata(self._request, self._ledger_id)]
