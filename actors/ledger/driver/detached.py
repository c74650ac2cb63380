"""Reading ledgers with no metadata session: in Ray tasks and Spark executors, which are told all that they need."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from actors.ledger.driver.config import LedgerClientConfig
from actors.ledger.driver.reader import read_entries
from actors.ledger.driver.world import BookieWorld
from actors.ledger.effects import LedgerEntry
from actors.ledger.limits import MIB
from actors.ledger.reader import check_range
from heliograph.errors import AlreadyClosedError
from metadata.model import LedgerMetadata

LOGGED_MAX = 1_000  # bad copies that one reader logs (I15)

logger = logging.getLogger(__name__)


class DetachedReader:
    """Reads ranges of ledgers from the segments and the addresses it is given. Lives on one event loop.

    It cannot learn that a copy moved, nor leave a task for repair: a bad copy is logged, and the next replica is asked.
    """

    def __init__(self, addresses: Mapping[str, str], config: LedgerClientConfig | None = None) -> None:
        """``addresses``: bookie id -> ``host:port``. Needs a running event loop."""
        self._world = BookieWorld(addresses.get, config or LedgerClientConfig())
        self._world.spawn(self._world.keep_time())
        self._is_closed = False
        self._logged: set[tuple[int, str]] = set()

    async def read(
        self, record: LedgerMetadata, first: int, last: int, max_bytes: int = 5 * MIB
    ) -> Sequence[LedgerEntry]:
        """Consecutive entries from ``first`` on: at least one, at most up to ``last``, about ``max_bytes`` of payload.

        Args:
            record: of a ledger called CLOSED at the last entry that may be read; its segments must hold the range.

        Raises:
            NoSuchEntryError: the range ends beyond the record's end, or no replica has ``first`` any more.
            QuorumLostError: no replica could serve now.
            EntryDamagedError: every copy of ``first`` is damaged.
            AlreadyClosedError: ``close`` was called.
        """
        if self._is_closed:
            raise AlreadyClosedError("the reader was closed")
        assert record.is_closed, "without metadata, the record's own end is all that is known"
        check_range(record, first, last, record.last_entry_id)  # I3
        on_lacking = partial(self._log_lacking, record.ledger_id)
        return await read_entries(self._world, record, first, last, max_bytes, on_lacking)

    async def close(self) -> None:
        """Close all connections; a read under way fails. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._world.close("the reader was closed")

    def _log_lacking(self, ledger_id: int, bookies: set[str]) -> None:
        for bookie_id in sorted(bookies):
            if (ledger_id, bookie_id) not in self._logged and len(self._logged) < LOGGED_MAX:
                self._logged.add((ledger_id, bookie_id))
                logger.warning(
                    "bookie %s lacks entries of ledger %d, or has them damaged: another copy is read, this one needs "
                    "repair",
                    bookie_id,
                    ledger_id,
                )
