"""Brokers' answers about a topic for a plan: one answer if it can hold all, otherwise one question at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.client.admin.admin import Admin
from heliograph.pipelines.planning.conditions import Where
from heliograph.pipelines.planning.ranges import Position
from heliograph.protocol.topic_name import TopicName

Bounds = Mapping[int, Position] | None


class PlanAnswer:
    """One answer of ``read_plan``. It has the methods of the administration that plans use, and asks there for what the
    answer does not hold: the ledgers of a chain after the first thousand.

    Args:
        told: rows of the answer; empty: everything is asked.
        first: the first ledgers that were asked for, by partition.
    """

    def __init__(self, admin: Admin, told: Sequence[Mapping[str, Any]] = (), first: Mapping[str, int] | None = None):
        self._admin = admin
        self._told = {one["topic"]: one for one in told}
        self._first = first or {}

    @classmethod
    async def of(cls, admin: Admin, topic: TopicName, start: Bounds, end: Bounds, where: Where | None) -> PlanAnswer:
        """Ask for what is acknowledged now, between the bounds.

        Conditions that leave out whole ledgers are judged first, so that no access to those is asked for.

        Raises:
            NotFoundError: a ledger was trimmed while the answer was made.
        """
        if where is not None and where.leaves_out_ledgers:
            return cls(admin)
        first, last = _ledger_ids(start), _ledger_ids(end)
        try:
            return cls(admin, await admin.read_plan(str(topic), first or None, last or None), first)
        except (BadRequestError, NotFoundError) as error:
            if error.field not in ("operation", "method"):
                raise
            return cls(admin)  # a gateway or a broker of an earlier release

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 for a topic that has none."""
        return 0 if topic in self._told else len(self._told) or await self._admin.partitions(topic)

    async def topic_ledgers(self, topic: str, after: int) -> Mapping[str, Any]:
        """Return a page of ledgers; see ``TopicOperations.topic_ledgers``."""
        told = self._told.get(topic)
        if told is None or after != self._first.get(str(TopicName.parse(topic).partition), 0) - 1:
            return await self._admin.topic_ledgers(topic, after)
        page: Mapping[str, Any] = told["rows"]
        return page

    async def ledger_ranges(self, topic: str) -> list[Any]:
        """Return all ledgers, of a broker that has no pages of them; see ``TopicOperations.ledger_ranges``."""
        return await self._admin.ledger_ranges(topic)

    async def read_access(self, topic: str, ledger_ids: Sequence[int]) -> Mapping[str, Any]:
        """Return the access to ledgers, or to more; see ``TopicOperations.read_access``."""
        told: Mapping[str, Any] = self._told[topic]["access"] if topic in self._told else {"ledgers": ()}
        if topic in self._told and {*ledger_ids} <= {one["ledger_id"] for one in told["ledgers"]}:
            return told
        return await self._admin.read_access(topic, ledger_ids)


def _ledger_ids(bound: Bounds) -> dict[str, int]:
    return {str(partition): place[0] for partition, place in bound.items()} if bound else {}
