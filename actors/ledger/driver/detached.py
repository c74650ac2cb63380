"""Reading ledgers with no metadata session: in Ray tasks and Spark executors, which are told all that they need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from actors.ledger.driver.config import LedgerClientConfig
from actors.ledger.driver.operation import Operation
from actors.ledger.driver.reader import read_entries
from actors.ledger.driver.world import BookieWorld
from actors.ledger.effects import LedgerEntry
from actors.ledger.limits import MIB
from actors.ledger.reader import check_range
from heliograph.errors import AlreadyClosedError
from metadata.model import LedgerMetadata


class DetachedReader:
    """Reads ranges of ledgers from the segments and the addresses it is given. Lives on one event loop.

    It cannot learn that a copy moved, and reports no bad ones: it goes to the next replica, and the auditor's own
    checks find what is damaged.
    """

    def __init__(self, addresses: Mapping[str, str], config: LedgerClientConfig | None = None) -> None:
        """``addresses``: bookie id -> ``host:port``. Needs a running event loop."""
        self._world = BookieWorld(addresses.get, config or LedgerClientConfig())
        self._world.spawn(self._world.keep_time())
        self._is_closed = False

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
        return await read_entries(self._world, record, first, last, max_bytes)

    async def close(self) -> None:
        """Close all connections; a read under way fails. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        world = self._world
        for waiting in list(world.ticking):
            if isinstance(waiting, Operation):
                waiting.abandon(AlreadyClosedError("the reader was closed"))
        tasks = list(world.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        world.bookies.close()
