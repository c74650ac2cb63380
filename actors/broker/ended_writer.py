"""Stands in for the writer of a terminated topic's last ledger, which is closed for good."""

from __future__ import annotations

import asyncio
from typing import Any

from actors.broker.ledgers import OnAdded
from actors.errors import LedgerClosedError
from heliograph.errors import HeliographError
from metadata.model import LedgerMetadata


class EndedWriter:
    """A LedgerWriter that takes nothing."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        assert metadata.is_closed, "the end of the ledger is decided"
        self.metadata = metadata

    @property
    def ledger_id(self) -> int:
        """See LedgerWriter."""
        return self.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """See LedgerWriter."""
        return self.metadata.last_entry_id

    @property
    def length(self) -> int:
        """See LedgerWriter."""
        return self.metadata.length

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """Raises LedgerClosedError."""
        raise LedgerClosedError(f"ledger {self.ledger_id} is closed")

    def add_then(self, payload: bytes, on_added: OnAdded, context: Any = None) -> None:
        """Raises LedgerClosedError."""
        self.add(payload)

    async def close(self) -> LedgerMetadata:
        """See LedgerWriter."""
        return self.metadata

    def abort(self, error: HeliographError) -> None:
        """See LedgerWriter. There is nothing to give up."""
