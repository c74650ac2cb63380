"""What the auditor needs of ledgers: a part of ``actors.ledger.driver.LedgerClient``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from metadata.model import LedgerMetadata, Versioned


class Ledgers(Protocol):
    """Ledgers as the auditor and its worker act on them."""

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The ledger's metadata now.

        Raises:
            NoSuchLedgerError: it was deleted.
        """

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Fence the ledger, decide its end and close it; idempotent.

        Raises:
            LedgerRecoveryError, NotEnoughBookiesError: nothing was decided; call again.
        """

    async def repair(
        self, ledger_id: int, missing_bookies: Collection[str], *, away_from: Collection[str] = ()
    ) -> bool:
        """Bring back the copies that ``missing_bookies`` lack; True when nothing is left to do.

        Args:
            away_from: bookies to be emptied: what they hold is copied to others, alive or not.

        Raises:
            NoSuchLedgerError: it was deleted.
            LedgerError: it could not be done now; what was copied stays, and the metadata names no copy that is not.
        """

    async def check(self, ledger_id: int) -> Collection[str]:
        """Ask every bookie of a closed ledger which of its entries it holds; the bookies that lack some.

        Raises:
            NoSuchLedgerError: it was deleted.
            LedgerError: a bookie did not answer; nothing may be concluded.
        """
