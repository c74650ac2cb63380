"""What the broker asks of the ledger layer: a port, kept by ``actors/ledger/driver.py`` and by the tests' fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from heliograph.errors import AlreadyClosedError, HeliographError
from metadata.model import LedgerMetadata, Versioned

OnAdded = Callable[[Any, int, HeliographError | None], None]  # context, entry id (-1 with an error), error


class LedgerEntry(Protocol):
    """One entry as a reader returns it."""

    @property
    def entry_id(self) -> int:
        """Its number in the ledger."""

    @property
    def payload(self) -> bytes | memoryview:
        """What was added."""


class LedgerWriter(Protocol):
    """The one writer of an open ledger."""

    @property
    def ledger_id(self) -> int:
        """The ledger."""

    @property
    def metadata(self) -> LedgerMetadata:
        """As this writer knows it."""

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is on an ack quorum, -1 for none."""

    @property
    def length(self) -> int:
        """Payload bytes added so far."""

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """Append; the future gives the entry id once an ack quorum has fsynced it, in entry order (I2).

        The future raises LedgerFencedError, LedgerClosedError or QuorumLostError; the outcome is then unknown. The
        call itself raises the same when the writer ended before.
        """

    def add_then(self, payload: bytes, on_added: OnAdded, context: Any = ...) -> None:
        """``add`` without a future: ``on_added(context, entry_id, error)`` is called, in entry order."""

    async def close(self) -> LedgerMetadata:
        """Wait for what was added, then decide the end of the ledger."""

    def abort(self, error: HeliographError) -> None:
        """Give the ledger up as it is: nobody wants it any more. Adds under way fail with ``error``. A writer that is
        neither closed nor given up stays in memory for as long as the session (I15)."""


class LedgerReader(Protocol):
    """Reads a ledger without disturbing its writer."""

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read; of a closed ledger its last."""

    async def read(self, first: int, last: int, max_bytes: int = ...) -> Sequence[LedgerEntry]:
        """Entries ``first`` to ``last``, fewer when they exceed ``max_bytes``, at least one."""

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry."""

    async def close(self) -> None:
        """Let go of the ledger."""


class Ledgers(Protocol):
    """The ledgers of the cluster."""

    async def create(
        self, *, ensemble_size: int, write_quorum: int, ack_quorum: int, properties: Mapping[str, str] | None = ...
    ) -> LedgerWriter:
        """A new open ledger. Raises NotEnoughBookiesError."""

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence, recover and close; the metadata returned is CLOSED. Idempotent."""

    async def open(self, ledger_id: int) -> LedgerReader:
        """A reader, without recovery and without a fence."""

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger; nothing happens when it is gone already."""

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The ledger's metadata now."""


def give_up(writer: LedgerWriter | None) -> None:
    """Nobody wants its ledger any more: another one took its place, or what it was for is gone."""
    if writer is not None:
        writer.abort(AlreadyClosedError("another ledger took its place, or what it is for is gone"))
