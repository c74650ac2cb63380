"""What a lost consumer held, and which of it was all that callers had (decision 29)."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.dispatch.dispatcher import CrashBudget
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.backends.memory import MemoryStore
from tests.unit.broker.subscription.test_divided import batch_of, join, publish_section, settled
from tests.unit.broker.topic_world import topic_on
from tests.unit.broker.world import World


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_only_the_one_message_that_callers_had_counts_as_lost_alone(
    topic: BrokerTopic, kind: SubscriptionType, world: World, store: MemoryStore
) -> None:
    """The others of the consumer's queue are innocent, and no failover forgets which one it was."""
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 10, kind=kind)
    await publish_section(jobs, topic.ledger, batch_of(8))
    await publish_section(jobs, topic.ledger, batch_of(1))
    batch, single = (jobs.chain.position_at(index) for index in (0, 1))
    a.note_in_hand(jobs.chain.find(batch), 2)
    jobs.remove_consumer(a, CrashBudget())
    b, ear = join(jobs, 10, kind=kind)
    await settled(jobs)
    assert (
        sorted(zip(ear.parts, ear.crashes, ear.lone_crashes, strict=True), key=lambda one: one[2:])
        == [
            ((batch, 0b11111011), 1, 0),
            ((single, 0b1), 1, 0),
            ((batch, 0b100), 1, 1),
        ]
        or kind is SubscriptionType.KEY_SHARED
    )
    assert sum(bits.bit_count() for (_, bits), alone in zip(ear.parts, ear.lone_crashes, strict=True) if alone) == 1
    b.note_in_hand(jobs.chain.find(single), 0)
    jobs.redeliver(b, [(single, 0)], is_unhandled=True)
    await settled(jobs)
    jobs.remove_consumer(b, CrashBudget())
    assert not any(jobs.cursor.crashed_alone.of(1)), "what went back is in nobody's hand"
    c, _ = join(jobs, 10, kind=kind)
    await settled(jobs)
    c.note_in_hand(jobs.chain.find(single), 0)
    c.note_in_hand(jobs.chain.find(Position(-1, -1)), 0)
    jobs.remove_consumer(c, CrashBudget())
    assert not any(jobs.cursor.crashed_alone.of(1)), "a caller got another one, too"
    stored = jobs.persist()
    assert stored is not None
    await stored
    topic = await topic_on(world, store)
    again = await topic.subscribe("jobs", start=0)
    assert dict(again.cursor.crashed_alone.items()) == dict(jobs.cursor.crashed_alone.items()) != {}


async def test_the_others_of_a_batch_that_is_partly_acknowledged_were_in_nobodys_hand(topic: BrokerTopic) -> None:
    """The consumer has the whole entry again after a crash, and hands its messages out one after the other."""
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 20)
    await publish_section(jobs, topic.ledger, batch_of(10))
    batch = jobs.chain.position_at(0)
    jobs.remove_consumer(a, CrashBudget())
    b, _ = join(jobs, 20)
    await settled(jobs)
    b.note_in_hand(0, 0)
    jobs.acknowledge([(batch, 0b1111111110)], b)
    b.note_in_hand(0, 1)
    jobs.remove_consumer(b, CrashBudget())
    c, ear = join(jobs, 20)
    await settled(jobs)
    found = sorted((bits, alone) for (_, bits), alone in zip(ear.parts, ear.lone_crashes, strict=True))
    assert found == [(0b10, 1), (0b1111111100, 0)]
    c.note_in_hand(0, 1)
    jobs.acknowledge([(batch, 0b1111111100)], c)
    jobs.remove_consumer(c, CrashBudget())
    _, ear = join(jobs, 20)
    await settled(jobs)
    assert (ear.parts, ear.lone_crashes) == ([(batch, 0b1111111100)], [0]), "the broker was told of an older one"


async def test_what_else_goes_back_leaves_the_message_in_the_hand_of_its_caller(topic: BrokerTopic) -> None:
    jobs = await topic.subscribe("jobs", start=0)
    a, _ = join(jobs, 20)
    await publish_section(jobs, topic.ledger, batch_of(4))
    await publish_section(jobs, topic.ledger, batch_of(1))
    batch, single = (jobs.chain.position_at(index) for index in (0, 1))
    a.note_in_hand(0, 1)
    jobs.redeliver(a, [(single, 0)], is_unhandled=True)
    jobs.redeliver(a, [(batch, 0b1101)], is_unhandled=True)
    assert a.state.in_hand == (0, 0b10)
    jobs.redeliver(a, [(batch, 0b11)])
    assert a.state.in_hand is None
    a.note_in_hand(1, 0)
    jobs.redeliver(a, [])
    assert a.state.in_hand is None, "everything goes back"
