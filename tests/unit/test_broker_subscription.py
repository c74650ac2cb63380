"""One subscription of a topic: what it holds back, what it lets pass, and who takes whose place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.broker.consumer import Consumer
from actors.broker.subscription import DUE_MAX, Subscription
from actors.broker.subscription_type import SubscriptionType
from heliograph.errors import ConsumerAssignError, ConsumerBusyError
from heliograph.protocol.hashing import KEY_HASH_RANGE, sticky_key_hash
from metadata.memory import MemoryStore
from tests.unit.broker_world import World, turns
from tests.unit.topic_world import Ear, listen, publish, run, topic_on

DUE_MS = 1 << 41
SHARED, KEY_SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE


def set_clock(subscription: Subscription, now_ms: int) -> None:
    subscription.delays.clock = lambda: now_ms


def test_what_is_due_goes_to_its_consumer_while_another_one_is_far_behind() -> None:
    """The entries parked for a slow consumer are no reason to hold back those of the others."""

    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        billing = await topic.subscribe("billing", start=0)
        await publish(topic.ledger, "b", due_ms=DUE_MS)
        await publish(topic.ledger, *["a"] * (DUE_MAX + 10))
        ranges = [(sticky_key_hash(key.encode()),) * 2 for key in "ab"]
        set_clock(billing, DUE_MS - 1)
        _, slow = listen(billing, KEY_SHARED, 1, (ranges[0],))
        _, ready = listen(billing, KEY_SHARED, 10, (ranges[1],))
        await turns(lambda: billing.dispatcher.replay_count > DUE_MAX and billing.delays.index.count == 1)
        set_clock(billing, DUE_MS)
        billing.schedule_pump()
        await turns(lambda: ready.keys == ["b"])
        assert slow.keys == ["a"]
        billing.abandon(ConsumerBusyError("the test is over"))

    run(scenario)


def test_turning_delays_off_concerns_what_is_not_held_back_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Pulsar: what is held back waits on, nothing joins it, and whoever opens the topic next holds nothing."""
    monkeypatch.setattr("actors.broker.delayed_index.RUN_ENTRIES_MAX", 2)

    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        billing = await topic.subscribe("billing", start=0)
        await publish(topic.ledger, "a", "b", "c", due_ms=DUE_MS)
        set_clock(billing, DUE_MS - 1)
        _, heard = listen(billing, SHARED)
        await turns(lambda: billing.delays.index.count == 3 and bool(billing.log and billing.log.properties))
        world.policies = replace(world.policies, delayed_delivery=False)
        topic.apply_policies(world.policies)
        await publish(topic.ledger, "d", due_ms=DUE_MS)
        await turns(lambda: heard.keys == ["d"])
        assert billing.delays.index.count == 3
        await topic.close()
        again = (await topic_on(world, await world.session())).subscriptions["billing"]
        set_clock(again, DUE_MS - 1)
        _, heard = listen(again, SHARED)
        await turns(lambda: sorted(heard.keys) == ["a", "b", "c", "d"])
        again.abandon(ConsumerBusyError("the test is over"))

    run(scenario)


def test_a_seek_forward_forgets_what_was_held_back_before_it() -> None:
    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        billing = await topic.subscribe("billing", start=0)
        await publish(topic.ledger, "a", "b", "c", due_ms=DUE_MS)
        set_clock(billing, DUE_MS - 1)
        listen(billing, SHARED)
        await turns(lambda: billing.delays.index.count == 3)
        await billing.reset(2)
        assert (billing.backlog, billing.delays.index.count) == (1, 1)

    run(scenario)


def test_whose_place_is_wanted() -> None:
    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        for kind, ranges, error in (
            (EXCLUSIVE, None, ConsumerBusyError),
            (KEY_SHARED, ((0, KEY_HASH_RANGE - 1),), ConsumerAssignError),
        ):
            subscription = await topic.subscribe(kind.value, start=0)
            holder, ear = listen(subscription, kind, key_ranges=ranges)
            with pytest.raises(error):
                listen(subscription, kind, key_ranges=ranges)
            newcomer = Consumer(1, "", 0, -1, Ear())
            newcomer.state.key_ranges = ranges
            assert subscription.rivals(newcomer, kind) == [ear]
            assert subscription.rivals(newcomer, SHARED) == []
            assert subscription.rivals(holder, kind) == [], "who asks is there"

    run(scenario)
