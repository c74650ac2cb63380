"""The ledgers as the broker uses them: interfaces, which ``actors/ledger/driver`` and the tests' fake implement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from heliograph.actors.errors import EntryDamagedError
from heliograph.base.errors import AlreadyClosedError, HeliographError, TooFewBookiesError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, Versioned
from heliograph.metrics.metric import Histogram

T = TypeVar("T")
OnAdded = Callable[[Any, int, HeliographError | None], None]  # context, entry id (-1 with an error), error


class LedgerEntryPort(Protocol):
    """One entry that a reader returned."""

    @property
    def entry_id(self) -> int:
        """Return its id."""

    @property
    def payload(self) -> bytes | memoryview:
        """Return the bytes that were added."""


class LedgerWriterPort(Protocol):
    """The only writer of an open ledger."""

    @property
    def ledger_id(self) -> int:
        """Return the id of the ledger."""

    @property
    def metadata(self) -> LedgerMetadata:
        """Return the metadata as this writer knows it."""

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry that is on an ack quorum (LAC), -1 for none."""

    @property
    def length(self) -> int:
        """Return the payload bytes added so far."""

    def add(self, payload: bytes | memoryview) -> asyncio.Future[int]:
        """Append an entry. The future returns its id once an ack quorum has fsynced it, in entry order (I2).

        The future raises LedgerFencedError, LedgerClosedError or QuorumLostError; the outcome is then unknown. The call
        itself raises the same if the writer ended before.
        """

    def add_then(self, payload: bytes | memoryview, on_added: OnAdded, context: Any = ..., observer: Any = ...) -> None:
        """Append an entry without a future: ``on_added(context, entry_id, error)`` is called in entry order. An
        ``observer`` is told which bookies get it, and what each answers."""

    async def close(self) -> LedgerMetadata:
        """Wait for the adds in flight, then decide the end of the ledger."""

    async def probe(self, on_fenced: Callable[[HeliographError], None]) -> bool:
        """Return whether an ack quorum of bookies would take another add now; False if that is not known.

        ``on_fenced`` is called, also later, if a bookie says that another client took the ledger over.
        """

    def abort(self, error: HeliographError) -> None:
        """Stop writing and leave the ledger as it is. Adds in flight fail with ``error``. A writer that is neither
        closed nor aborted stays in memory until the session ends (I15)."""


class LedgerReaderPort(Protocol):
    """Reads a ledger without affecting its writer."""

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry that may be read; of a closed ledger its last."""

    async def read(self, first: int, last: int, max_bytes: int = ...) -> Sequence[LedgerEntryPort]:
        """Return the entries ``first`` to ``last``, at least one, fewer if they exceed ``max_bytes``."""

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry."""

    async def close(self) -> None:
        """Release the reader."""


class LedgersPort(Protocol):
    """The ledgers of the cluster."""

    @property
    def placements(self) -> Sequence[str]:
        """Return the names of the placement policies that this process has."""

    @property
    def bookies(self) -> Mapping[str, BookieRegistration]:
        """Return the registrations of all bookies by id, with the racks that operators set, as watches tell them."""

    @property
    def add_latencies(self) -> Mapping[str, Histogram]:
        """Return how long bookies take for adds, by bookie id."""

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        properties: Mapping[str, str] | None = ...,
        minimum_copies: int = ...,
    ) -> LedgerWriterPort:
        """Create an open ledger. Raises TooFewBookiesError."""

    async def shortage(self, copies: int) -> TooFewBookiesError | None:
        """Return the error for a lack of bookies that take entries; None if there are ``copies`` of them."""

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence, recover and close a ledger, and return its CLOSED metadata. Idempotent."""

    async def open(self, ledger_id: int, known: LedgerMetadata | None = None) -> LedgerReaderPort:
        """Return a reader, without recovery and without a fence.

        Args:
            known: the ledger's record, if it was just read or stored; None to read it.
        """

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger. A ledger that does not exist is ignored."""

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return the ledger's metadata now."""

    async def copies(self, ledger_id: int, entry_id: int) -> Mapping[str, str]:
        """Return what each bookie that is to have an entry answers: ``present``, ``missing``, ``damaged`` or ``no
        answer``."""


def abandon_writer(writer: LedgerWriterPort | None) -> None:
    """Abort a writer whose ledger is not used any more; None is ignored."""
    if writer is not None:
        writer.abort(AlreadyClosedError("another ledger took its place, or its owner is gone"))


async def read_recovered(
    ledgers: LedgersPort, ledger_id: int, read: Callable[[LedgerReaderPort, int], Awaitable[T]]
) -> T:
    """Recover a ledger, which fences its writer, and return what ``read(reader, last entry id)`` returns.

    Raises:
        EntryDamagedError: the ledger is empty.
        NoSuchLedgerError: it does not exist.
        LedgerRecoveryError: it cannot be recovered now; try again.
    """
    last = (await ledgers.recover(ledger_id)).last_entry_id
    if last < 0:
        raise EntryDamagedError(f"ledger {ledger_id} is empty")
    reader = await ledgers.open(ledger_id)
    try:
        return await read(reader, last)
    finally:
        await reader.close()
