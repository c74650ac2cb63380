"""Pages of a topic's ledgers, as brokers answer with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def page_of(ledger_ids: Sequence[int], after: int, page_max: int = 1_000) -> dict[str, Any]:
    """Return a page of ledgers with ten entries each, as ``topic_ledgers`` does."""
    rows = [one for one in ledger_ids if one <= after][-1:] + [one for one in ledger_ids if one > after]
    page = [{"ledger_id": one, "entries": 10, "bytes": 0, "closed_ms": 0} for one in rows[:page_max]]
    return {"ledgers": page, "has_more": len(rows) > page_max}
