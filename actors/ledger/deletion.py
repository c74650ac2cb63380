"""Deleting a ledger: its record goes, whatever its version; bookies notice by comparing what they hold (I14)."""

from __future__ import annotations

from actors.ledger.effects import Deleted, DeleteMetadata, Effect, Failed
from actors.ledger.limits import MetadataLimits
from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError


class DeletionCore:
    """State machine of one deletion. A ledger that is gone already counts as deleted, so it may be repeated."""

    def __init__(self, ledger_id: int, limits: MetadataLimits | None = None) -> None:
        self.is_done = False
        self._ledger_id = ledger_id
        self._limits = limits or MetadataLimits()
        self._request = 0
        self._retry_at: int | None = None
        self._deadline = 0

    def start(self, now: int) -> list[Effect]:
        """Ask for it."""
        self._deadline = now + self._limits.wait_ms
        return self._ask()

    def on_metadata_deleted(self, request: int, now: int) -> list[Effect]:
        """There is no such record (any more)."""
        if self.is_done:
            return []
        self.is_done = True
        return [Deleted()]

    def on_metadata_refused(self, request: int, error: HeliographError, now: int) -> list[Effect]:
        """The store will not do it, now or later."""
        if self.is_done:
            return []
        self.is_done = True
        return [Failed(error)]

    def on_metadata_unknown(self, request: int, now: int) -> list[Effect]:
        """The store did not answer."""
        if not self.is_done and request == self._request:
            self._retry_at = now + self._limits.retry_ms
        return []

    def tick(self, now: int) -> list[Effect]:
        """Time has passed. Call at least every 100 ms."""
        if self.is_done:
            return []
        if now >= self._deadline:
            self.is_done = True
            return [Failed(ConnectionLossError(f"ledger {self._ledger_id} may or may not be deleted"))]
        return self._ask() if self._retry_at is not None and now >= self._retry_at else []

    def _ask(self) -> list[Effect]:
        self._retry_at = None
        self._request += 1
        return [DeleteMetadata(self._request, self._ledger_id)]
