"""Reads of ledgers without a metadata session, for Ray tasks and Spark executors."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.context import BookieContext
from heliograph.actors.ledger.driver.reader import read_entries
from heliograph.actors.ledger.effects import LedgerEntry
from heliograph.actors.ledger.limits import MIB
from heliograph.actors.ledger.reader import check_range
from heliograph.actors.wire.grant import grant_from_text
from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import AlreadyClosedError, AuthenticationError
from heliograph.metadata.model import LedgerMetadata

LOGGED_MAX = 1_000  # bookies with bad copies that one reader logs (I15)

log = logging.getLogger(__name__)


class DetachedReader:
    """Reader of ranges of ledgers, given their records and the addresses of bookies. It lives on one event loop.

    It does not learn that a copy moved and leaves no task for repair. It logs a bad copy and asks the next replica.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        config: LedgerClientConfig | None = None,
        grant: str = "",
        authority: str = "",
        nearby: Sequence[Collection[str]] = (),
    ) -> None:
        """Make a reader. Needs a running event loop.

        Args:
            addresses: bookie id -> ``host:port``.
            grant: a broker's grant for the ledgers to read; empty if bookies are open.
            authority: which signs the certificates of bookies, in PEM; empty if they are plain.
            nearby: groups of bookies, the nearest first, whose copies are read before those of others as healthy.

        Raises:
            AuthenticationError: the grant is none, or has expired.
        """
        self._grant = grant_from_text(grant) if grant else None
        self._check_grant()
        self._context = BookieContext(
            addresses.get,
            config or LedgerClientConfig(),
            grant=self._grant,
            authority=authority,
            copies_entries=False,
            nearby=nearby,
        )
        self._context.spawn(self._context.keep_time())
        self._is_closed = False
        self._logged: set[tuple[int, str]] = set()

    async def read(
        self, record: LedgerMetadata, first: int, last: int, max_bytes: int = 5 * MIB, *, heads: bool = False
    ) -> Sequence[LedgerEntry]:
        """Read consecutive entries from ``first`` on: at least one, at most up to ``last`` and about ``max_bytes``.

        Their payloads are views of the bookie's answer, which stays in memory as long as one of them is used.

        Args:
            record: the ledger's record, CLOSED at the last entry that may be read. Its segments hold the range.
            heads: payloads may be cut after HEAD_BYTES. The bookie has checked the whole entries.

        Raises:
            NoSuchEntryError: the range ends beyond the record's end, or no replica has ``first`` now.
            QuorumLostError: no replica could serve now.
            EntryDamagedError: every copy of ``first`` is damaged.
            AlreadyClosedError: ``close`` was called.
            AuthenticationError: the grant has expired.
        """
        if self._is_closed:
            raise AlreadyClosedError("the reader was closed")
        self._check_grant()
        assert record.is_closed, "without metadata, the record has the end"
        check_range(record, first, last, record.last_entry_id)  # I3
        on_lacking = partial(self._log_lacking, record.ledger_id)
        return await read_entries(self._context, record, first, last, max_bytes, on_lacking, heads=heads)

    async def close(self) -> None:
        """Close all connections. A read under way fails. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._context.close("the reader was closed")

    def _check_grant(self) -> None:
        if self._grant is not None and self._grant.is_expired(wall_ms()):
            raise AuthenticationError(
                f"the grant to read these ledgers ended at {iso_time(self._grant.expires_ms)}: plan the read again, or "
                "raise broker.read_grant_seconds",
                field="read_grant_seconds",
            )

    def _log_lacking(self, ledger_id: int, bookies: set[str], damaged: set[str]) -> None:
        for bookie_id in sorted(bookies):
            if (ledger_id, bookie_id) not in self._logged and len(self._logged) < LOGGED_MAX:
                self._logged.add((ledger_id, bookie_id))
                log.warning(
                    "bookie %s %s entries of ledger %d: another replica is read",
                    bookie_id,
                    "has damaged" if bookie_id in damaged else "lacks",
                    ledger_id,
                )
