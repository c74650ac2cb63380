"""What a broker does for its topics now and then: each part of it by itself, whatever became of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors.errors import QuorumLostError
from heliograph.errors import ProducerHeldError
from heliograph.protocol.topic_name import TopicName
from metadata.memory import MemoryStore
from tests.unit.broker_clients import LoneBroker
from tests.unit.broker_world import World, turns
from tests.unit.test_broker_cancellations import Gate
from tests.unit.topic_world import publish, run, topic_on


def test_producers_are_not_let_in_while_the_age_of_a_backlog_is_looked_at() -> None:
    """Nor because it cannot be looked at: what was found the last time holds until then."""

    async def scenario(world: World, store: MemoryStore) -> None:
        world.policies = replace(world.policies, backlog_quota_seconds=1)
        topic = await topic_on(world, store)
        billing = await topic.subscribe("billing", start=0)
        await publish(topic.ledger, *"abc", times=[1, 2, 3])
        quota = topic.write_side.quota
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

    run(scenario)


def test_what_cannot_expire_now_does_not_keep_ledgers_from_being_trimmed() -> None:
    """Nobody may be able to read the oldest message ever again: the topic would grow for ever."""

    async def scenario(lone: LoneBroker) -> None:
        topics = lone.broker.topics
        topic = await topics.get(TopicName.parse("orders"))
        topic.apply_policies(replace(topic.policies, message_ttl_seconds=1, ledger_entries_max=2, retention_seconds=0))
        await publish(topic.ledger, *"abcde")
        await topic.subscribe("billing", start=4)
        await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)

        async def refuse(index: int) -> None:
            raise QuorumLostError("not now")

        topic.reader.entry = refuse  # type: ignore[method-assign,assignment]
        await topics.housekeep()
        assert topic.ledger.chain.first == 4

    with LoneBroker("orders") as lone:
        lone.run(scenario(lone))
