"""The operations on ledgers that the auditor needs: a part of ``heliograph.actors.ledger.driver.LedgerClient``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from heliograph.actors.ledger.effects import CheckFinished, RepairFinished
from heliograph.metadata.model import LedgerMetadata, Versioned


class RepairLedgersPort(Protocol):
    """Port to the ledgers, for the auditor and its worker."""

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """Return the ledger's record.

        Raises:
            NoSuchLedgerError: it was deleted.
        """

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger, find its end and close it. Idempotent.

        Raises:
            LedgerRecoveryError: nothing was decided; call again.
        """

    def has_replacement(self, ledger: LedgerMetadata, positions: Collection[int]) -> bool:
        """Whether the ledger's placement finds a bookie for one of these positions of its last segment now."""

    async def repair(
        self,
        ledger_id: int,
        missing_bookies: Collection[str],
        *,
        away_from: Collection[str] = (),
        damaged: Collection[str] = (),
    ) -> RepairFinished:
        """Make the copies that ``missing_bookies`` lack. Return the copied entries, and whether nothing is left to do.

        Args:
            away_from: bookies to be emptied, alive or not: their data is copied to others.
            damaged: the bookies among ``missing_bookies`` whose copies are all read, and written again if bad.

        Raises:
            NoSuchLedgerError: it was deleted.
            LedgerError: it failed; copies that were made stay, and metadata names no copy that does not exist (I10).
        """

    async def holdings(self, ledger_id: int) -> tuple[LedgerMetadata, CheckFinished]:
        """Return the ledger's record, and how many entries each bookie lacks that metadata says it has.

        Raises:
            NoSuchLedgerError: it was deleted.
        """

    def statistics(self) -> dict[str, Any]:
        """Return counts since the start, among them ``entries_repaired`` and ``bytes_repaired``."""

    async def check(self, ledger_id: int) -> Collection[str]:
        """Ask every bookie of a closed ledger for its entries. Return the bookies that lack some.

        Raises:
            NoSuchLedgerError: it was deleted.
            LedgerError: a bookie did not answer; nothing may be concluded.
        """
