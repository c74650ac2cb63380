"""Reads of ledgers without a metadata session, for Ray tasks and Spark executors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.context import BookieContext
from heliograph.actors.ledger.driver.reader import read_entries
from heliograph.actors.ledger.effects import LedgerEntry
from heliograph.actors.ledger.limits import MIB
from heliograph.actors.ledger.reader import check_range
from heliograph.base.errors import AlreadyClosedError
from heliograph.metadata.model import LedgerMetadata

LOGGED_MAX = 1_000  # bookies with bad copies that one reader logs (I15)

log = logging.getLogger(__name__)


class DetachedReader:
    """Reader of ranges of ledgers, given their records and the addresses of bookies. It lives on one event loop.

    It does not learn that a copy moved and leaves no task for repair. It logs a bad copy and asks the next replica.
    """

    def __init__(self, addresses: Mapping[str, str], config: LedgerClientConfig | None = None) -> None:
        """``addresses``: bookie id -> ``host:port``. Needs a running event loop."""
        self._context = BookieContext(addresses.get, config or LedgerClientConfig())
        self._context.spawn(self._context.keep_time())
        self._is_closed = False
        self._logged: set[tuple[int, str]] = set()

    async def read(
        self, record: LedgerMetadata, first: int, last: int, max_bytes: int = 5 * MIB
    ) -> Sequence[LedgerEntry]:
        """Read consecutive entries from ``first`` on: at least one, at most up to ``last`` and about ``max_bytes``.

        Args:
            record: the ledger's record, CLOSED at the last entry that may be read. Its segments hold the range.

        Raises:
            NoSuchEntryError: the range ends beyond the record's end, or no replica has ``first`` now.
            QuorumLostError: no replica could serve now.
            EntryDamagedError: every copy of ``first`` is damaged.
            AlreadyClosedError: ``close`` was called.
        """
        if self._is_closed:
            raise AlreadyClosedError("the reader was closed")
        assert record.is_closed, "without metadata, the record tells the end"
        check_range(record, first, last, record.last_entry_id)  # I3
        on_lacking = partial(self._log_lacking, record.ledger_id)
        return await read_entries(self._context, record, first, last, max_bytes, on_lacking)

    async def close(self) -> None:
        """Close all connections. A read under way fails. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._context.close("the reader was closed")

    def _log_lacking(self, ledger_id: int, bookies: set[str]) -> None:
        for bookie_id in sorted(bookies):
            if (ledger_id, bookie_id) not in self._logged and len(self._logged) < LOGGED_MAX:
                self._logged.add((ledger_id, bookie_id))
                log.warning(
                    "bookie %s lacks entries of ledger %d or has damaged ones: another replica is read",
                    bookie_id,
                    ledger_id,
                )
