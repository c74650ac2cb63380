"""One subscription of a topic: what it delivers, what it holds back, and which consumers hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.stats import subscription_stats
from heliograph.actors.broker.subscription.subscription import DUE_MAX, Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ConsumerAssignError, ConsumerBusyError, HeliographError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.hashing import KEY_HASH_RANGE, sticky_key_hash
from tests.unit.broker.topic_world import Ear, listen, publish, topic_on
from tests.unit.broker.world import World, entry, turns

DUE_MS = 1 << 41
SHARED, KEY_SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED, SubscriptionType.EXCLUSIVE


def set_clock(subscription: Subscription, now_ms: int) -> None:
    subscription.delays.clock = lambda: now_ms


async def test_what_is_due_goes_to_its_consumer_while_another_one_is_far_behind(topic: BrokerTopic) -> None:
    """Entries parked for a slow consumer do not hold back those of the others."""
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


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["billing"], ["receipt", "billing", "confirmed"]),
        (["billing", "audit"], ["receipt", "confirmed", "billing", "audit"]),
    ],
)
async def test_a_lone_entry_goes_to_the_only_subscription_with_its_receipt(
    world: World, store: MemoryStore, names: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipts of producers do not wait for many subscriptions."""
    events: list[str] = []
    counted: list[int] = []
    ledgers: list[ManagedLedger] = []
    pump = Subscription.pump

    def pumped(self: Subscription) -> None:
        events.append(self.name)
        pump(self)

    class Publication:
        def confirmed(self, position: Position) -> None:
            events.append("receipt")
            counted.append(ledgers[0].entries_added)

        def failed(self, error: HeliographError) -> None:
            raise AssertionError(error)

        delayed = failed

    topic = await topic_on(world, store)
    for name in names:
        await topic.subscribe(name, start=0)
    deliver = topic.ledger.on_confirmed
    assert deliver is not None

    def confirmed(is_last: bool) -> None:
        deliver(is_last)
        events.append("confirmed")

    topic.ledger.on_confirmed = confirmed
    monkeypatch.setattr(Subscription, "pump", pumped)
    ledgers.append(topic.ledger)
    topic.ledger.add(entry("a"), Publication())
    await turns(lambda: len(events) == len(expected))
    assert events == expected
    assert counted == [0], "the receipt is first, then the entry is counted and cached"
    assert topic.ledger.entries_added == 1


async def test_turning_delays_off_concerns_what_is_not_held_back_yet(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-back entries keep waiting as in Pulsar, no entry joins them, and the next owner of the topic holds none
    back."""
    monkeypatch.setattr("heliograph.actors.broker.delayed.index.RUN_ENTRIES_MAX", 2)
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


async def test_a_seek_forward_forgets_what_was_held_back_before_it(topic: BrokerTopic) -> None:
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, "a", "b", "c", due_ms=DUE_MS)
    set_clock(billing, DUE_MS - 1)
    listen(billing, SHARED)
    await turns(lambda: billing.delays.index.count == 3)
    await billing.reset(2)
    assert (billing.backlog, billing.delays.index.count) == (1, 1)


async def test_the_holders_of_a_subscription(topic: BrokerTopic) -> None:
    for kind, ranges, error in (
        (EXCLUSIVE, None, ConsumerBusyError),
        (KEY_SHARED, ((0, KEY_HASH_RANGE - 1),), ConsumerAssignError),
    ):
        subscription = await topic.subscribe(kind.value, start=0)
        holder, ear = listen(subscription, kind, key_ranges=ranges)
        with pytest.raises(error):
            listen(subscription, kind, key_ranges=ranges)
        newcomer = SubscriptionConsumer(1, "", 0, -1, Ear())
        newcomer.state.key_ranges = ranges
        assert subscription.holders(newcomer, kind) == [ear]
        assert subscription.holders(newcomer, SHARED) == []
        assert subscription.holders(holder, kind) == [], "who asks is there"


async def test_acknowledged_entries_are_counted_one_by_one(topic: BrokerTopic) -> None:
    """A batch counts as one entry when its last message is acknowledged, and a skip as all the entries it passes."""
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abcdefgh")
    _, heard = listen(billing, SHARED)
    await turns(lambda: len(heard.positions) == 8)
    billing.acknowledge([(heard.positions[1], None)])
    billing.acknowledge([(heard.positions[1], None)])  # again, without effect
    assert billing.entries_acknowledged == 1
    billing.skip(3)  # 0, 2 and 3
    assert billing.entries_acknowledged == 4
    billing.acknowledge_cumulative(heard.positions[5])
    billing.acknowledge_cumulative(heard.positions[4])  # before the mark-delete position, without effect
    assert billing.entries_acknowledged == 6
    assert subscription_stats(billing, topic.ledger, 0)["messageAckCounter"] == 6
    billing.abandon(ConsumerBusyError("the test is over"))


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_only_the_newest_entry_that_is_delivered_by_itself_waits_for_no_other(
    topic: BrokerTopic, kind: SubscriptionType
) -> None:
    billing = await topic.subscribe("billing", start=0)
    consumer, heard = listen(billing, kind)
    for number in range(1, 4):
        await publish(topic.ledger, "a")
        await turns(lambda number=number: len(heard.keys) == number)  # type: ignore[misc]
    assert heard.were_alone == [True] * 3
    billing.set_writable(consumer, False)
    await publish(topic.ledger, *"abc")
    billing.set_writable(consumer, True)
    await turns(lambda: len(heard.keys) == 6)
    assert heard.were_alone[3:] == [False] * 3
    billing.abandon(ConsumerBusyError("the test is over"))


async def test_few_entries_are_cached_where_nobody_reads(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a topic without subscriptions do not take the room of others."""
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.tail_cache.UNREAD_BYTES_MAX", 700)
    topic = await topic_on(world, store)
    cache = topic.ledger._tail._cache
    await publish(topic.ledger, *"abcde")
    few = len(cache)
    assert 1 <= few < 5
    assert cache.bytes <= 700
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"fghi")
    assert len(cache) == few + 4
    _, heard = listen(billing, EXCLUSIVE)
    await turns(lambda: heard.keys == [*"abcdefghi"])
    billing.abandon(ConsumerBusyError("the test is over"))


async def test_a_turn_delivers_no_more_bytes_than_it_may(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts of producers are written between the turns."""
    monkeypatch.setattr("heliograph.actors.broker.subscription.subscription.TURN_BYTES_MAX", 1)
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, "a", "b", "c")
    _, heard = listen(billing, EXCLUSIVE)
    await turns(lambda: bool(heard.keys))
    assert heard.keys == ["a"]
    await turns(lambda: heard.keys == ["a", "b", "c"])
