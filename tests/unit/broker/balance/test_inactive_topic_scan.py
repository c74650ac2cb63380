"""The inactive-topic scan: which topics are due, and that their owners are asked to open them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.actors.broker.balance import inactive_topic_scan
from heliograph.actors.broker.balance.inactive_topic_scan import READS_AT_ONCE, InactiveTopicScan, is_due
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.records import NamespaceRecords
from heliograph.actors.broker.records.topic_record import DELETING
from heliograph.base.clock import wall_ms
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata.model import LedgerInfo, Policies, TopicRecord
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import World

NOW = 1_000_000
FULL = TopicRecord("t", (LedgerInfo(1, 10, 100, NOW - 50_000), LedgerInfo(2, 10, 100, NOW - 20_000)), created_ms=1)
EMPTY = TopicRecord("t", (LedgerInfo(3, 0, 0, NOW - 20_000),), created_ms=NOW - 90_000)
HALF_DELETED = replace(FULL, properties={DELETING: "true"})  # the broker that opens it finishes its deletion
NEVER_OPENED = TopicRecord("t", created_ms=NOW - 90_000)


@pytest.mark.parametrize(
    ("record", "policies", "subscriptions", "due"),
    [
        (FULL, Policies(), 1, False),
        (HALF_DELETED, Policies(), 0, True),
        (FULL, Policies(retention_seconds=50), 0, True),
        (FULL, Policies(retention_seconds=51), 0, False),
        (FULL, Policies(retention_bytes=100), 0, True),
        (FULL, Policies(retention_bytes=101), 0, False),
        (FULL, Policies(message_ttl_seconds=50), 1, True),
        (FULL, Policies(message_ttl_seconds=50), 0, False),
        (FULL, Policies(message_ttl_seconds=51), 1, False),
        (EMPTY, Policies(message_ttl_seconds=1), 1, False),
        (EMPTY, Policies(retention_seconds=1), 0, False),  # it was trimmed: a visit would find nothing, each hour
        (FULL, Policies(inactive_delete_seconds=20), 0, True),
        (FULL, Policies(inactive_delete_seconds=21), 0, False),
        (NEVER_OPENED, Policies(inactive_delete_seconds=90), 0, True),
        (FULL, Policies(subscription_expiration_seconds=20), 1, True),
        (FULL, Policies(subscription_expiration_seconds=20), 0, False),
    ],
)
def test_what_is_due(record: TopicRecord, policies: Policies, subscriptions: int, due: bool) -> None:
    assert is_due(record, policies, subscriptions, NOW) is due


async def test_subscriptions_are_read_only_where_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inactive_topic_scan, "READS_PER_SECOND_MAX", 1e9)
    store = await World().session()
    catalog, visited, asked = Catalog(store), list[str](), list[str]()
    records, children = NamespaceRecords(store, catalog), store.children
    for number in range(2 * READS_AT_ONCE + 1):
        await catalog.create(TopicName.parse(f"t{number}"))
    await records.set_policies("public/default", {"message_ttl_seconds": 3_600})
    await records.set_topic_policies("t5", {"inactive_delete_seconds": 1})

    async def read_children(path: str, watcher: Any = None) -> list[str]:
        asked.append(path)
        return await children(path, watcher)

    async def visit(name: TopicName) -> None:
        visited.append(name.local_name)

    async def finish() -> None:
        raise AssertionError("only `run` finishes deletions")

    monkeypatch.setattr(store, "children", read_children)
    monkeypatch.setattr(inactive_topic_scan, "wall_ms", lambda: wall_ms() + 2_000)
    await InactiveTopicScan(store, catalog, visit, finish).scan()
    assert visited == ["t5"]
    assert len(asked) == 1


@pytest.mark.slow
async def test_owners_are_asked_once_within_the_revisit_interval() -> None:
    store = await World().session()
    catalog, visited = Catalog(store), []
    records = NamespaceRecords(store, catalog)
    for topic in ("calm", "due", "refused"):
        await catalog.create(TopicName.parse(topic))
    await records.set_topic_policies("due", {"inactive_delete_seconds": 1})
    await records.set_topic_policies("refused", {"inactive_delete_seconds": 1})

    async def visit(name: TopicName) -> None:
        if name.local_name == "refused":
            raise ServiceNotReadyError("not now")
        visited.append(name.local_name)

    async def finish() -> None:
        raise AssertionError("only `run` finishes deletions")

    scan = InactiveTopicScan(store, catalog, visit, finish)
    while not visited:  # a second has to pass
        await scan.scan()
        await asyncio.sleep(0.05)
    assert await scan.scan() == 0
    assert visited == ["due"]
    assert scan.visits_total == 1
