"""The compacted form of a topic and the entries that it replaces: what its readers need is never deleted, and when its
ledger is lost the rest of the topic is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heliograph.actors.broker.subscription.state import SubscriptionState
from heliograph.actors.broker.subscription.subscription import COMPACTION
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.stats import topic_stats
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.idle_topics import has_backlog
from heliograph.actors.errors import LedgerRecoveryError, QuorumLostError
from heliograph.base.errors import (
    BadRequestError,
    CompactedLostError,
    ConflictError,
    HeliographError,
    PersistenceError,
    SubscriptionNotFoundError,
)
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import LedgerMetadata
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.compaction.test_compaction import batch
from tests.unit.broker.topic_world import finish, listen, publish, topic_on
from tests.unit.broker.world import Outcomes, World, turns


async def compact(topic: BrokerTopic) -> None:
    topic.compaction.start()
    await finish(topic)
    assert topic.compaction.status.status == "SUCCESS"


async def compacted(world: World, store: MemoryStore) -> BrokerTopic:
    """Return a topic with eight messages in ledgers of three, the first six compacted to two; ``state`` reads that
    form."""
    world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
    topic = await topic_on(world, store)
    await publish(topic.ledger, *"aababb")
    await compact(topic)
    await publish(topic.ledger, "c", "d")
    await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
    await topic.subscribe("state", start=0, view=await topic.view(True))
    return topic


async def read_all(topic: BrokerTopic) -> list[str]:
    chain, reader = await topic.view(True)
    return [(await reader.entry(index)).sticky_key.decode() for index in range(chain.first, chain.end)]


def lose_compacted(world: World, topic: BrokerTopic) -> int:
    record = topic.ledger.record.compacted
    assert record is not None
    del world.ledgers.ledgers[record.ledger_id]
    return record.ledger_id


async def test_nothing_behind_the_horizon_goes_wherever_the_mark_of_compaction_stands(
    world: World, store: MemoryStore
) -> None:
    topic = await compacted(world, store)
    await publish(topic.ledger, *"efgh")
    await topic.unsubscribe("state")
    done = topic.subscriptions[COMPACTION].skip(None)
    assert done is not None
    await done
    await topic.trim()
    assert await read_all(topic) == list("abcdefgh")


async def test_the_compacted_form_goes_with_its_subscription(world: World, store: MemoryStore) -> None:
    """Pulsar does the same. Its readers read the topic itself from then on, as far as its entries are kept."""
    topic = await compacted(world, store)
    await topic.trim()
    record = topic.ledger.record.compacted
    assert record is not None
    topic.compaction.start()
    with pytest.raises(ConflictError):
        await topic.unsubscribe(COMPACTION)
    await finish(topic)
    await topic.unsubscribe(COMPACTION)
    assert topic.ledger.record.compacted is None
    assert topic.subscriptions["state"].chain is topic.ledger.chain
    await topic.trim()
    assert not [ledger for ledger in world.ledgers.ledgers.values() if "compaction" in str(ledger.metadata)]
    assert await read_all(topic) == ["c", "d"]
    await compact(topic)
    assert await read_all(topic) == ["c", "d"]


async def test_the_compacted_form_is_searched_by_publish_time(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    chain, reader = await topic.view(True)
    assert await reader.index_at_time(0) == chain.first
    assert await reader.index_at_time(1 << 62) == chain.end


async def test_the_name_of_the_compaction_subscription_is_reserved(topic: BrokerTopic) -> None:
    with pytest.raises(BadRequestError):
        await topic.subscribe(COMPACTION, start=0)


async def test_a_lost_compacted_ledger_is_replaced_by_a_topic_that_was_never_trimmed(
    world: World, store: MemoryStore
) -> None:
    topic = await compacted(world, store)
    lost = lose_compacted(world, topic)
    again = await topic_on(world, await world.session())
    assert again.compaction.status.status == "ERROR"
    assert str(lost) in again.compaction.status.last_error
    assert again.subscriptions["state"].backlog == 5, "what came before the first that was kept is outdated"
    assert await read_all(again) == list("aababbcd")
    await again.trim()
    assert again.ledger.chain.first == 0, "the next compaction needs all of it"
    await compact(again)
    assert await read_all(again) == list("abcd")
    assert again.subscriptions["state"].backlog == 4


async def test_a_topic_without_its_compacted_ledger_serves_the_rest(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    await topic.subscribe("billing", start=3)
    await topic.trim()
    assert topic.ledger.chain.first == 3
    lose_compacted(world, topic)
    again = await topic_on(world, await world.session())
    assert again.subscriptions["billing"].backlog == 5
    assert isinstance(unavailable(again)["state"], CompactedLostError)
    stats = topic_stats(again, "b")
    assert stats["unavailableSubscriptions"] == {"state": str(unavailable(again)["state"])}
    for refused in (again.view(True), again.subscribe("state", start=0)):
        with pytest.raises(CompactedLostError):
            await refused
    with pytest.raises(CompactedLostError):
        await again.subscription("state")
    assert has_backlog(again)
    again.compaction.start()
    await finish(again)
    assert again.compaction.status.status == "ERROR"
    await again.unsubscribe("state")
    with pytest.raises(SubscriptionNotFoundError):
        await again.subscription("state")
    await again.unsubscribe(COMPACTION)  # the entries that are left are all that there is
    assert await read_all(again) == list("abbcd")


async def test_a_compacted_ledger_that_is_out_of_reach_comes_back(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.compaction.compactor.RETRY_SECONDS", 0)
    topic = await compacted(world, store)
    record = topic.ledger.record.compacted
    assert record is not None
    open_ledger = world.ledgers.open

    async def refuse(ledger_id: int, known: LedgerMetadata | None = None) -> object:
        if ledger_id == record.ledger_id:
            raise QuorumLostError("no bookie answers")
        return await open_ledger(ledger_id, known)

    world.ledgers.open = refuse  # type: ignore[assignment]
    again = await topic_on(world, await world.session())
    assert isinstance(unavailable(again)["state"], QuorumLostError)
    await again.housekeep()
    await turns(lambda: "state" in unavailable(again))
    assert set(unavailable(again)) == {"state"}
    world.ledgers.open = open_ledger  # type: ignore[method-assign]
    await again.housekeep()
    await again.recoveries.all_recovered()
    assert again.subscriptions["state"].backlog == 4


async def test_admin_knows_subscriptions_that_cannot_be_used_now() -> None:
    async with LoneBroker("orders") as lone:
        admin = lone.broker.admin
        await admin.publish("orders", [b"1", b"2"], ["key", "key"])
        await admin.compact_topic("orders")
        name = TopicName.parse("orders")
        topic = await lone.broker.topics.get(name)
        await finish(topic)
        await topic.subscribe("state", start=0, view=await topic.view(True))
        record = topic.ledger.record.compacted
        assert record is not None
        await topic.ledger.change_record(lambda found: replace(found, properties={}))  # of an older version
        del lone.ledgers.ledgers[record.ledger_id]
        await lone.broker.topics.unload(name)
        assert await admin.subscriptions("orders") == [COMPACTION, "state"]
        with pytest.raises(ConflictError):
            await admin.create_subscription("orders", "state")
        with pytest.raises(HeliographError):
            await admin.cursors.peek("orders", "state")
        assert await admin.trim_topic("orders") == 0, "a reader of the lost form needs nothing of the topic's head"
        await admin.delete_subscription("orders", "state")
        await admin.delete_topic("orders")
        assert not lone.ledgers.ledgers


async def test_a_cursor_that_cannot_be_taken_over_now_is_taken_over_later(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    done = topic.subscriptions["state"].skip(1)
    assert done is not None
    await done
    await topic.close()
    again = await topic_on(world, await world.session())
    state = again.subscriptions.pop("state")
    assert state.log is not None
    state.log.abandon(PersistenceError("the test wants it loaded again"))
    again.recoveries.begin("state")
    end = await recovery_fails(world, again)
    assert isinstance(unavailable(again)["state"], LedgerRecoveryError)
    assert again.is_open
    end()
    await again.housekeep()
    await again.recoveries.all_recovered()
    assert again.subscriptions["state"].backlog == 3


def unavailable(topic: BrokerTopic) -> dict[str, HeliographError]:
    """Return the subscriptions that could not be loaded, with the reasons."""
    pending = topic.recoveries.pending.items()
    return {name: one.error for name, one in pending if one.state is SubscriptionState.UNAVAILABLE}


async def recovery_fails(world: World, topic: BrokerTopic) -> Callable[[], None]:
    """Wait for a recovery in the background, which meets a cursor ledger that cannot be recovered now."""
    recover = world.ledgers.recover

    async def refuse(ledger_id: int) -> LedgerMetadata:
        raise LedgerRecoveryError("not now")

    world.ledgers.recover = refuse  # type: ignore[method-assign]
    await turns(lambda: bool(unavailable(topic)))

    def end() -> None:
        world.ledgers.recover = recover  # type: ignore[method-assign]

    return end


async def test_messages_that_compaction_took_out_of_a_batch_need_no_acknowledgement(topic: BrokerTopic) -> None:
    """A client acknowledges the message that it got, and leaves the others of the batch as they are."""
    outcomes = Outcomes()
    outcomes.publish_bytes(topic.ledger, batch([("a", b"1"), ("b", b"1"), ("c", b"1")]))
    outcomes.publish_bytes(topic.ledger, batch([("a", b"2"), ("b", b"2")]))
    await turns(lambda: len(outcomes.confirmed) == 2)
    await compact(topic)
    state = await topic.subscribe("state", start=0, view=await topic.view(True))
    consumer, _ = listen(state, SubscriptionType.EXCLUSIVE, permits=1)
    await turns(lambda: 0 in consumer.state.pending)
    state.acknowledge([(state.chain.position_at(0), 0b011)], consumer)
    assert state.cursor.mark == 1
    assert not consumer.state.pending
