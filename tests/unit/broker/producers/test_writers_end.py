"""Writers whose ledgers are not used any more are aborted: otherwise they would stay in memory for as long as the
session of the broker (I15)."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.cursor import log as cursor_log
from heliograph.actors.broker.dedup import log as dedup_log
from heliograph.actors.broker.delayed.log import DelayedLog
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.errors import QuorumLostError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from tests.unit.broker.topic_world import finish, publish, topic_on
from tests.unit.broker.world import World, turns


async def test_a_cursor_writes_to_one_ledger(world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "LEDGER_ENTRIES_MAX", 2)
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abcdefghi")
    for _ in range(9):
        done = billing.skip(1)
        assert done is not None
        await done
    assert world.ledgers.kept_writers == ["topic", "cursor"]
    await topic.unsubscribe("billing")
    assert world.ledgers.kept_writers == ["topic"]


async def test_a_cursor_ledger_that_could_not_be_named_is_abandoned(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_log, "ROLL_DELAY_S", 0)
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"ab")
    assert billing.log is not None
    record, calls = billing.log._owned, 0
    replace_record = record.replace

    async def fail_first(new: object) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionLossError("metadata is out of reach")
        await replace_record(new)  # type: ignore[arg-type]

    record.replace = fail_first  # type: ignore[method-assign,assignment]
    done = billing.skip(1)
    assert done is not None
    await done
    assert calls == 3
    assert world.ledgers.kept_writers == ["topic", "cursor"]


async def test_deduplication_writes_to_one_ledger(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_log, "LEDGER_ENTRIES_MAX", 2)
    topic = await topic_on(world, store)
    log = await dedup_log.create_dedup(topic._place("dedup"), topic.ledger.chain, store, world.ledgers)
    for _ in range(7):
        log.write([])
        await log.settled()
    assert world.ledgers.kept_writers == ["topic", "deduplication"]
    world.ledgers.fail_adds = QuorumLostError("not now")
    log.write([])
    await log.settled()
    assert world.ledgers.kept_writers == ["topic"]
    world.ledgers.fail_adds = None
    log.write([])
    await log.settled()
    await log.delete()
    assert world.ledgers.kept_writers == ["topic"]


async def test_an_index_of_delayed_entries_abandons_ledgers_without_items(world: World, store: MemoryStore) -> None:
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, "a")
    assert billing.log is not None
    log = DelayedLog(billing.log, topic.ledger.chain, world.ledgers)
    key = await log.store([(1, 0)])
    assert world.ledgers.kept_writers == ["topic", "delayed"]
    await log.finished(key)
    assert world.ledgers.kept_writers == ["topic"]
    assert isinstance(await log.store([(1, 0)]), Position)
    await log.forget_all()
    await log.store([(1, 0)])
    assert world.ledgers.kept_writers == ["topic", "delayed"]
    await log.delete()
    assert world.ledgers.kept_writers == ["topic"]


async def test_a_cancelled_compaction_abandons_its_ledger(topic: BrokerTopic, world: World) -> None:
    await publish(topic.ledger, "a", "b")
    create = world.ledgers.create

    async def create_one_that_fails(**options: object) -> object:
        writer = await create(**options)  # type: ignore[arg-type]
        if writer.metadata.properties["use"] == "compaction":
            world.ledgers.fail_adds = QuorumLostError("not now")
        return writer

    world.ledgers.create = create_one_that_fails  # type: ignore[method-assign,assignment]
    topic.compaction.start()
    await finish(topic)
    assert topic.compaction.status.status == "ERROR"
    await turns(lambda: world.ledgers.kept_writers == ["topic"])
