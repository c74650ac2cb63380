"""Housekeeping of a broker's topics: the failure of one duty does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.expiry import expire_older_than, expire_up_to
from heliograph.actors.broker.upkeep.housekeeping import leave_last_ledger_if_due, trim_with_last
from heliograph.actors.errors import QuorumLostError
from heliograph.base.errors import ProducerHeldError, QuotaExceededError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.topic.test_cancellations import Gate
from tests.unit.broker.topic_world import let_pass, listen, publish, topic_on
from tests.unit.broker.world import World, turns


async def test_producers_are_not_let_in_while_the_age_of_a_backlog_is_looked_at(
    world: World, store: MemoryStore
) -> None:
    """Nor if the age cannot be read: the result of the last check stays in force."""
    world.policies = replace(world.policies, backlog_quota_seconds=1)
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abc")
    let_pass(topic, 2)
    quota = topic.admission.quota
    assert isinstance(topic.reader, TopicReader)
    await quota.check()
    assert isinstance(quota.refusal(), ProducerHeldError)
    topic.reader._readers.clear()
    billing.skip(1)
    gate = Gate(world.ledgers.open)
    world.ledgers.open = gate  # type: ignore[method-assign,assignment]
    looking = asyncio.create_task(quota.check())
    await gate.arrived.wait()
    assert isinstance(quota.refusal(), ProducerHeldError)
    gate.open.set()
    await looking
    billing.skip(1)
    topic.reader._readers.clear()

    async def refuse(ledger_id: int) -> None:
        raise QuorumLostError("not now")

    world.ledgers.open = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(QuorumLostError):
        await quota.check()
    assert isinstance(quota.refusal(), ProducerHeldError)
    billing.skip(None)
    await quota.check()
    assert quota.refusal() is None


@pytest.mark.parametrize(
    ("by_size", "by_age", "left", "refusal"),
    [
        ("producer_exception", "", 3, QuotaExceededError),
        ("producer_exception", "consumer_backlog_eviction", 0, None),
        ("consumer_backlog_eviction", "producer_request_hold", 3, ProducerHeldError),
    ],
)
async def test_the_quota_by_age_may_have_its_own_action(
    world: World, store: MemoryStore, by_size: str, by_age: str, left: int, refusal: type[Exception] | None
) -> None:
    world.policies = replace(
        world.policies,
        backlog_quota_seconds=1,
        backlog_quota_action=by_size,
        backlog_quota_seconds_action=by_age,
    )
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abc")
    let_pass(topic, 2)
    await topic.admission.quota.check()
    found = topic.admission.quota.refusal()
    assert (billing.backlog, found and type(found)) == (left, refusal)


async def test_a_quota_refuses_no_producer_once_the_last_durable_subscription_is_deleted(
    world: World, store: MemoryStore
) -> None:
    world.policies = replace(world.policies, backlog_quota_seconds=1)
    topic = await topic_on(world, store)
    await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abc")
    let_pass(topic, 2)
    await topic.admission.quota.check()
    await topic.unsubscribe("billing")
    assert topic.admission.quota.refusal() is None


async def test_what_cannot_expire_now_does_not_keep_ledgers_from_being_trimmed() -> None:
    """The oldest message may never be readable again, and the topic would grow for ever."""
    async with LoneBroker("orders") as lone:
        topic = await lone.broker.topics.get(TopicName.parse("orders"))
        topic.apply_policies(replace(topic.policies, message_ttl_seconds=1, ledger_entries_max=2, retention_seconds=0))
        await publish(topic.ledger, *"abcde")
        await topic.subscribe("billing", start=4)
        await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)

        async def refuse(index: int) -> None:
            raise QuorumLostError("not now")

        topic.reader.entry = refuse  # type: ignore[method-assign,assignment]
        await lone.broker.upkeep.round()
        assert topic.ledger.chain.first == 4


async def test_each_loss_leaves_one_line_of_how_many_which_and_why(
    world: World, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "heliograph")
    world.policies = replace(
        world.policies,
        backlog_quota_seconds=1,
        backlog_quota_action="consumer_backlog_eviction",
        ledger_entries_max=5,
        retention_seconds=0,
    )
    topic = await topic_on(world, store)
    old, evicted = await topic.subscribe("old", start=0), await topic.subscribe("evicted", start=0)
    await publish(topic.ledger, *"abcde")
    await turns(lambda: len(topic.ledger.record.ledgers) == 2)
    await publish(topic.ledger, "f")
    ledger_id = topic.ledger.record.ledgers[0].ledger_id
    old.skip(2)

    def told(word: str) -> list[str]:
        lines = [record.getMessage() for record in caplog.records if word in record.getMessage()]
        caplog.clear()
        return lines

    assert await expire_up_to(topic, old, 4, "an administrator says so") == 2
    assert await expire_up_to(topic, old, 4, "an administrator says so") == 0
    span = f"{ledger_id}:2 to {ledger_id}:3"
    assert told("lost") == [f"{topic.name}: subscription old lost 2 messages, {span}: an administrator says so"]
    let_pass(topic, 5)
    assert await expire_older_than(topic, [old], 2) == 2
    (line,) = told("lost")
    assert line.startswith(f"{topic.name}: subscription old lost 2 messages, {ledger_id}:4 to ")
    assert line.endswith(": stored more than 2 s ago")
    await topic.admission.quota.check()
    (line,) = told("lost")
    assert line.startswith(f"{topic.name}: subscription evicted lost 6 messages, {ledger_id}:0 to ")
    assert line.endswith(": evicted by the backlog quota, stored more than 1 s ago")
    assert (old.backlog, evicted.backlog) == (0, 0)
    assert await topic.trim() == 1
    (line,) = told("trimmed")
    assert line.startswith(f"{topic.name}: 5 entries were trimmed, of the ledgers {ledger_id} to {ledger_id}: ")
    await topic.trim()
    assert told("trimmed") == []


async def test_a_topic_is_kept_up_although_a_round_ran_while_it_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round takes the note of the topic, and does not find it among the loaded ones yet."""
    async with LoneBroker("orders") as lone:
        load = BrokerTopic.load_subscriptions

        async def load_and_look(topic: BrokerTopic) -> None:
            await load(topic)
            await lone.broker.upkeep.round()

        await lone.broker.upkeep.round()
        planned = lone.broker.upkeep.planned
        monkeypatch.setattr(BrokerTopic, "load_subscriptions", load_and_look)
        await lone.broker.topics.get(TopicName.parse("orders"))
        await lone.broker.upkeep.round()
        assert lone.broker.upkeep.planned == planned + 1


async def test_the_last_ledger_of_a_topic_that_nobody_uses_is_trimmed(world: World, store: MemoryStore) -> None:
    """Such a topic is unloaded before the ledger is old enough for another one."""
    world.policies = replace(world.policies, retention_seconds=0, retention_bytes=0)
    first = await topic_on(world, store)
    billing = await first.subscribe("billing", start=0)
    await publish(first.ledger, "a")
    await first.close()
    topic = await topic_on(world, store)
    await topic.recoveries.all_recovered()
    leave_last_ledger_if_due(topic)
    assert topic.ledger.state is WriteState.DORMANT
    assert billing.backlog == 1  # a cursor needs it
    topic.subscriptions["billing"].skip(None)
    leave_last_ledger_if_due(topic)
    await turns(lambda: topic.ledger.state is WriteState.WRITING)
    assert await topic.trim() == 1
    assert topic.ledger.chain.first == 1


async def test_who_asks_for_a_trim_is_rid_of_the_last_ledger_of_a_topic_that_is_used(
    world: World, store: MemoryStore
) -> None:
    """Its owner has only read since it took the topic over."""
    world.policies = replace(world.policies, retention_seconds=0, retention_bytes=0)
    first = await topic_on(world, store)
    await first.subscribe("billing", start=0)
    await publish(first.ledger, "a")
    await first.close()
    topic = await topic_on(world, store)
    await topic.recoveries.all_recovered()
    billing = topic.subscriptions["billing"]
    listen(billing, SubscriptionType.EXCLUSIVE)
    assert await trim_with_last(topic) == 0
    assert topic.ledger.state is WriteState.DORMANT, "a cursor needs the ledger"
    billing.skip(None)
    leave_last_ledger_if_due(topic)
    assert topic.ledger.state is WriteState.DORMANT
    assert await trim_with_last(topic) == 1
    assert topic.ledger.chain.first == 1
    assert await trim_with_last(topic) == 0
