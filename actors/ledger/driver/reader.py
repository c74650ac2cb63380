"""The handle for reading a ledger, which any client may be writing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from heliograph.actors.errors import EntryDamagedError, LedgerError, NoSuchLedgerError
from heliograph.actors.ledger.driver.context import BookieContext, DriverContext
from heliograph.actors.ledger.driver.operation import Operation
from heliograph.actors.ledger.effects import LacFound, LedgerEntry, ReadFinished
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.actors.ledger.limits import MIB
from heliograph.actors.ledger.reader import ReadCore, check_range
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import NO_ENTRY, LedgerMetadata, Versioned
from heliograph.metadata.paths import ledger as ledger_path
from heliograph.metadata.recipes.repair_tasks import mark_underreplicated
from heliograph.metadata.recipes.update_loop import read


class LedgerReader:
    """Reader of the confirmed entries of one ledger (I3). It does not fence the ledger or disturb its writer.

    Args:
        last: the last entry of a CLOSED ledger, if it is known.
    """

    def __init__(
        self, context: DriverContext, metadata: Versioned[LedgerMetadata], last: LedgerEntry | None = None
    ) -> None:
        self.ledger_id = metadata.record.ledger_id
        self._context = context
        self._metadata = metadata
        self._last = last
        self._last_add_confirmed = NO_ENTRY
        self._is_closed = False
        self._reported: set[str] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata.record

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry that may be read: the last one of a closed ledger, else the highest LAC known here."""
        record = self._metadata.record
        return record.last_entry_id if record.is_closed else self._last_add_confirmed

    async def read(self, first: int, last: int, max_bytes: int = 5 * MIB) -> list[LedgerEntry]:
        """Read consecutive entries from ``first`` on: at least one, at most up to ``last`` and about ``max_bytes``.

        Raises:
            NoSuchEntryError: the range ends beyond ``last_add_confirmed``, or no replica has ``first`` now.
            QuorumLostError: no replica could serve now.
            EntryDamagedError: every copy of ``first`` is damaged.
            NoSuchLedgerError: it was deleted.
            MetadataError: no copy was found where it should be, and the ledger's record could not be read again.
        """
        check_range(self.metadata, first, last, self.last_add_confirmed)  # I3
        if self._last is not None and first == self._last.entry_id:
            return [self._last]
        try:
            return await self._read(first, last, max_bytes)
        except (LedgerError, EntryDamagedError):
            before = self._metadata.version
            await self.refresh()  # its copies may be on other bookies now
            if self._metadata.version == before:
                raise
        return await self._read(first, last, max_bytes)

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the LAC. ``last_add_confirmed`` never goes back.

        Raises:
            QuorumLostError: too few bookies answered.
            NoSuchLedgerError: it was deleted.
            MetadataError: the ledger's record could not be read.
        """
        if self.metadata.is_closed:
            return self.last_add_confirmed
        await self.refresh()
        if self.metadata.is_closed:
            return self.last_add_confirmed
        found = cast(LacFound, await Operation(self._context, LacReadCore(self.metadata)).result())
        return self._learn(found.last_add_confirmed)

    async def refresh(self) -> LedgerMetadata:
        """Read the ledger's record again.

        Raises:
            NoSuchLedgerError: it was deleted.
            RecordError: the record is damaged, or written by a newer version.
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        try:
            fresh = await read(self._context.store, ledger_path(self.ledger_id), LedgerMetadata)
        except NoNodeError as error:
            raise NoSuchLedgerError(
                f"ledger {self.ledger_id} is not in metadata: it was deleted", field="ledger_id"
            ) from error
        if fresh.version > self._metadata.version:
            self._metadata = fresh
        return self._metadata.record

    async def close(self) -> None:
        """Do nothing: a reader holds no resources."""
        self._is_closed = True

    def _learn(self, last_add_confirmed: int) -> int:
        self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)  # I2
        return self.last_add_confirmed

    async def _read(self, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        entries = await read_entries(self._context, self.metadata, first, last, max_bytes, self._report)
        if not self.metadata.is_closed:
            self._learn(entries[-1].last_add_confirmed)
        return list(entries)

    def _report(self, bookies: set[str], damaged: set[str]) -> None:
        """Leave a task for repair, once for each bookie. The writer of an open ledger replaces its bookies itself."""
        fresh = bookies - self._reported
        if fresh and self.metadata.is_closed:
            self._reported |= fresh
            store = self._context.store
            self._context.spawn(mark_underreplicated(store, self.ledger_id, fresh, damaged & fresh))


async def read_entries(
    context: BookieContext,
    record: LedgerMetadata,
    first: int,
    last: int,
    max_bytes: int,
    on_lacking: Callable[[set[str], set[str]], None] = lambda bookies, damaged: None,
    *,
    heads: bool = False,
) -> Sequence[LedgerEntry]:
    """Read a range that ``check_range`` allowed.

    Args:
        on_lacking: called with the bookies whose copies were missing or damaged, and those of them whose copies were
            damaged, also when the read fails.
        heads: payloads may be cut after HEAD_BYTES.

    Raises:
        The errors of ``LedgerReader.read``.
    """
    core = ReadCore(record, first, last, max_bytes, context.health, context.config.reader, heads=heads)
    operation = Operation(context, core)
    try:
        finished = cast(ReadFinished, await operation.result())
    finally:
        if operation.bookies_lacking:
            on_lacking(operation.bookies_lacking, operation.bookies_damaged)
    return finished.entries
