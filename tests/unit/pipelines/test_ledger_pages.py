"""Planning asks for the ledgers that it needs, a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError
from heliograph.client.admin.admin import Admin
from heliograph.pipelines.planning.ledger_pages import LedgerRow, last_row, rows_between


def page_of(ledger_ids: Sequence[int], after: int, page_max: int = 1_000) -> dict[str, Any]:
    """Return a page of ledgers with ten entries each, as ``topic_ledgers`` does."""
    rows = [one for one in ledger_ids if one <= after][-1:] + [one for one in ledger_ids if one > after]
    page = [{"ledger_id": one, "entries": 10, "bytes": 0, "closed_ms": 0} for one in rows[:page_max]]
    return {"ledgers": page, "has_more": len(rows) > page_max}


class Broker:
    """A topic with many ledgers, told of in pages of five."""

    def __init__(self, ledgers: list[int], empty: int = 0) -> None:
        self._ledgers = ledgers
        self._empty = empty  # so many of the newest have no entries
        self.answers = 0

    async def topic_ledgers(self, topic: str, after: int) -> dict[str, Any]:
        self.answers += 1
        page = page_of(self._ledgers, after, 5)
        empty = self._ledgers[len(self._ledgers) - self._empty :]
        rows = [{**row, "entries": 0} if row["ledger_id"] in empty else row for row in page["ledgers"]]
        return {**page, "ledgers": rows}


class Older(Broker):
    """A broker of the previous release."""

    async def topic_ledgers(self, topic: str, after: int) -> dict[str, Any]:
        raise BadRequestError("brokers of this version have no method topic_ledgers", field="method")

    async def ledger_ranges(self, topic: str) -> list[dict[str, Any]]:
        return [{"ledger_id": one, "first_entry_id": 0, "last_entry_id": 9} for one in self._ledgers]


IDS = st.lists(st.integers(0, 60), max_size=40, unique=True).map(sorted)


@given(IDS, st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_rows_between_two_ledgers(ids: list[int], first: int | None, last: int | None) -> None:
    found = asyncio.run(rows_between(cast(Admin, Broker(ids)), "t", first, last))
    wanted = [one for one in ids if (first is None or one >= first) and (last is None or one <= last)]
    before = [one for one in ids if first is not None and one < first][-1:]
    found_ids = [row.ledger_id for row in found]
    assert found_ids[: len(before) + len(wanted)] == [*before, *wanted]
    assert found_ids == sorted(set(found_ids))


@given(IDS, st.integers(0, 9))
def test_the_newest_ledger_with_entries(ids: list[int], empty: int) -> None:
    found = asyncio.run(last_row(cast(Admin, Broker(ids, min(empty, len(ids)))), "t"))
    kept = ids[: max(len(ids) - empty, 0)]
    assert (found.ledger_id if found is not None else None) == (kept[-1] if kept else None)


def test_a_plan_of_the_end_of_a_long_chain_asks_once() -> None:
    broker = Broker(list(range(1_000)))
    asyncio.run(rows_between(cast(Admin, broker), "t", 998, None))
    asyncio.run(last_row(cast(Admin, broker), "t"))
    assert broker.answers == 2


def test_a_broker_of_the_previous_release_tells_of_all_at_once() -> None:
    older = cast(Admin, Older([3, 5, 8]))
    assert asyncio.run(rows_between(older, "t", 5, None)) == [LedgerRow(one, 10) for one in (3, 5, 8)]
    assert asyncio.run(last_row(older, "t")) == LedgerRow(8, 10)


def test_another_refusal_is_passed_on() -> None:
    class Partitioned(Broker):
        async def topic_ledgers(self, topic: str, after: int) -> dict[str, Any]:
            raise BadRequestError("the topic is partitioned", field="topic")

    with pytest.raises(BadRequestError, match="partitioned"):
        asyncio.run(last_row(cast(Admin, Partitioned([1])), "t"))
