"""The ledgers of a topic as its owner tells of them, in pages: a chain may have a million."""

from __future__ import annotations

from typing import NamedTuple

from heliograph.base.errors import BadRequestError
from heliograph.client.admin.admin import Admin
from heliograph.operations.table import INTEGER_MAX
from heliograph.pipelines.planning.plan_answer import PlanAnswer


class LedgerRow(NamedTuple):
    """One ledger of a topic, with the entries that were acknowledged when its owner was asked.

    Args:
        size: bytes; 0: not known.
        closed_ms: until when it was written, by the clock of its broker; 0: it is open, or that is not known.
    """

    ledger_id: int
    entries: int
    size: int = 0
    closed_ms: int = 0


async def rows_between(admin: Admin | PlanAnswer, topic: str, first: int | None, last: int | None) -> list[LedgerRow]:
    """Return the ledgers of a topic, oldest first, with the one before ``first``.

    Args:
        first, last: ids of ledgers, None for the ends of the chain.
    """
    after = -1 if first is None else first - 1
    rows: list[LedgerRow] = []
    has_more = True
    while has_more and (last is None or not rows or rows[-1].ledger_id <= last):
        page, has_more = await _page(admin, topic, after)
        rows += [row for row in page if not rows or row.ledger_id > rows[-1].ledger_id]
        after = rows[-1].ledger_id if rows else after
    return rows


async def last_row(admin: Admin, topic: str) -> LedgerRow | None:
    """Return the newest ledger with entries; None if the topic has none."""
    after = INTEGER_MAX
    while True:
        page, _ = await _page(admin, topic, after)
        for row in reversed(page):
            if row.entries:
                return row
        if not page or page[0].ledger_id > after:
            return None  # there is none up to ``after``
        after = page[0].ledger_id - 1


async def _page(admin: Admin | PlanAnswer, topic: str, after: int) -> tuple[list[LedgerRow], bool]:
    """Return a page, and whether ledgers come after it."""
    try:
        found = await admin.topic_ledgers(topic, after)
    except BadRequestError as error:
        if error.field not in ("operation", "method"):
            raise
        # A broker of an earlier release, which tells of all ledgers at once.
        ranges = await admin.ledger_ranges(topic)
        return [
            LedgerRow(one["ledger_id"], one["last_entry_id"] + 1, one.get("bytes", 0), one.get("closed_ms", 0))
            for one in ranges
        ], False
    rows = [LedgerRow(one["ledger_id"], one["entries"], one["bytes"], one["closed_ms"]) for one in found["ledgers"]]
    return rows, found["has_more"]
