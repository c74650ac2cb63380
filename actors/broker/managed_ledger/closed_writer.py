"""The writer of a last ledger that is closed: of a terminated topic, or of one that has no space for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.records.ledgers import LedgerWriterPort, OnAdded
from heliograph.actors.errors import LedgerClosedError
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata


class ClosedLedgerWriter(LedgerWriterPort):
    """A ``LedgerWriterPort`` of a closed ledger: it reports the end of the ledger and refuses every add."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        assert metadata.is_closed, "the end of the ledger is decided"
        self._metadata = metadata

    @property
    @override
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    @override
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    @override
    def last_add_confirmed(self) -> int:
        return self.metadata.last_entry_id

    @property
    @override
    def length(self) -> int:
        return self.metadata.length

    @override
    def add(self, payload: bytes | memoryview) -> asyncio.Future[int]:
        raise LedgerClosedError(f"ledger {self.ledger_id} is closed")

    @override
    def add_then(
        self, payload: bytes | memoryview, on_added: OnAdded, context: Any = None, observer: Any = None
    ) -> None:
        self.add(payload)

    @override
    async def close(self) -> LedgerMetadata:
        return self.metadata

    @override
    async def probe(self, on_fenced: Callable[[HeliographError], None]) -> bool:
        return False

    @override
    def abort(self, error: HeliographError) -> None:
        """Do nothing: there is no add in flight."""
