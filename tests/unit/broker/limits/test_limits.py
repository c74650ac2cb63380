"""Rates, limits on unacknowledged messages, the active consumer of Failover, and key ranges that are halved."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.dispatch.shared import SharedDispatcher
from heliograph.actors.broker.limits import dispatch_rate, publish_budget
from heliograph.actors.broker.limits.dispatch_rate import DispatchRate
from heliograph.actors.broker.limits.publish_budget import PublishBudget
from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.actors.broker.limits.subscribe_limit import SubscribeLimit
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.base.guard.token_bucket import TokenBucket
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.hashing import murmur3_hash
from tests.examples import examples
from tests.unit.broker.topic_world import listen, topic_on
from tests.unit.broker.world import Outcomes, World, turns

ENTRY = TopicEntry(b"x", 1, False, False, None, False, 0, b"")


def consumer(number: int, permits: int = 0, priority: int = 0) -> ConsumerState:
    return ConsumerState(number, f"c{number}", priority, permits)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.floats(0.5, 1_000),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 50)), max_size=60),
)
def test_a_bucket_gives_no_more_than_its_rate(rate: float, steps: list[tuple[float, float]]) -> None:
    bucket = TokenBucket(rate, 100.0)
    now, taken, largest = 100.0, 0.0, 0.0
    for passed, wanted in steps:
        now += passed
        wait = bucket.wait(now)
        if wait > 0:
            assert bucket.wait(now + wait + 1e-6) == 0, "it says when there is a token"
            now += wait + 1e-6
        bucket.take(wanted, now)
        taken, largest = taken + wanted, max(largest, wanted)
        assert taken <= rate * (now - 100.0 + 1.0) + largest + 1, "the burst, the rate, and one entry"


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 100), st.integers(2, 120))
def test_a_slow_rate_is_a_rate(amount: int, period: int) -> None:
    """A period's messages may come at once, and as many follow in each period after that."""
    bucket = TokenBucket(amount / period, 0.0, period)
    times: list[float] = []
    now = 0.0
    while now <= 3 * period:
        wait = bucket.wait(now)
        if wait > 0:
            now += wait + 1e-9
            continue
        bucket.take(1, now)
        times.append(now)
    assert sum(time == 0.0 for time in times) == amount
    assert 4 * amount - 1 <= len(times) <= 4 * amount + 1


def test_a_bucket_of_less_than_a_token_a_second_gives_one_at_a_time() -> None:
    bucket = TokenBucket(0.5, 0.0)
    given = []
    for tick in range(100):
        if bucket.wait(tick / 10) == 0:
            bucket.take(1, tick / 10)
            given.append(tick)
    assert len(given) in (5, 6)


def test_a_rate_relative_to_publishing_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1_000.0
    monkeypatch.setattr(dispatch_rate, "time", SimpleNamespace(monotonic=lambda: clock))
    published = [0.0]
    rate = DispatchRate(lambda now: (published[0], 0.0))
    rate.set(10, 0, 1, True)

    def delivered(seconds: int) -> int:
        nonlocal clock
        count = 0
        for _ in range(seconds * 1_000):
            clock += 0.001
            while rate.wait(clock) == 0:
                rate.take(1, 100, clock)
                count += 1
        return count

    delivered(5)
    assert 95 <= delivered(10) <= 105
    published[0] = 90.0
    delivered(5)
    assert 990 <= delivered(10) <= 1_010
    rate.set(10, 0)
    assert 95 <= delivered(10) <= 120


def test_a_consumer_subscribes_no_more_often_than_its_rate() -> None:
    limit = SubscribeLimit()
    one, other = ("host", "name", 1), ("host", "name", 2)
    assert all(limit.admit(one, 0.0) for _ in range(1_000))
    limit.set(10 / 30, 30)
    assert [limit.admit(one, 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.admit(other, 100.0)
    assert not limit.admit(one, 129.9)
    assert limit.admit(one, 130.0)
    limit.set(0, 30)
    assert all(limit.admit(one, 130.0) for _ in range(100))


def test_rates_are_those_of_the_last_minute_for_every_reader() -> None:
    window = RateWindow(1_000.0, 1)
    assert window.rates(1_000.2, 10) == (10.0,), "less than a second counts as one"
    assert window.rates(1_010.0, 600) == (60.0,)
    assert window.rates(1_010.0, 600) == (60.0,), "looking changes nothing"
    for second in range(15, 600, 15):  # 60 a second, which end after five minutes
        window.sample(1_000.0 + second, 60 * min(second, 300))
        (rate,) = window.rates(1_007.0 + second, 60 * min(second + 7, 300))
        if second < 290:
            assert rate == 60.0
        elif second > 375:
            assert rate == 0.0


def test_unacknowledged_messages_block_a_consumer_until_half_is_acknowledged() -> None:
    cursor = Cursor(0)
    dispatcher = SharedDispatcher(cursor)
    slow, fast = consumer(1, permits=100), consumer(2)
    dispatcher.add(slow)
    dispatcher.add(fast)
    dispatcher.set_limits(4, 0)
    for index in range(4):
        assert dispatcher.next_wanted(100) == index
        dispatcher.deliver(index, ENTRY, 1)
    assert slow.is_blocked
    assert dispatcher.next_wanted(100) is None
    fast.flow(1 - fast.permits)
    assert dispatcher.next_wanted(100) == 4
    delivery = dispatcher.deliver(4, ENTRY, 1)
    assert delivery is not None
    assert delivery.consumer is fast
    cursor.acknowledge(0)
    dispatcher.acknowledged(0)
    assert slow.is_blocked
    cursor.acknowledge(1)
    dispatcher.acknowledged(1)
    assert not slow.is_blocked
    dispatcher.set_limits(2, 0)
    assert slow.is_blocked, "a lower limit holds at once"
    dispatcher.set_limits(0, 3)
    assert not slow.is_blocked
    assert dispatcher.is_blocked


def test_the_active_consumer_of_partitions_spreads_evenly() -> None:
    consumers = [consumer(number) for number in range(3)]
    chosen = [FailoverChoice(partition).choose(consumers) for partition in range(9)]
    assert chosen == consumers * 3
    assert FailoverChoice(2).choose(consumers[::-1]) is consumers[2], "the order of arrival means nothing"
    assert FailoverChoice(0).choose([]) is None
    urgent = consumer(9, priority=-1)
    assert FailoverChoice(5).choose([*consumers, urgent]) is urgent


@settings(max_examples=examples(50), deadline=None)
@given(st.text(min_size=1), st.integers(2, 8), st.data())
def test_without_partitions_a_change_of_consumers_changes_few_choices(
    topic: str, count: int, data: st.DataObject
) -> None:
    consumers = [consumer(number) for number in range(count)]
    choice = FailoverChoice(-1, murmur3_hash(topic))
    before = choice.choose(consumers)
    left = data.draw(st.sampled_from(consumers))
    after = choice.choose([one for one in consumers if one is not left])
    assert after is not left
    assert before is left or after is before


def test_failover_waits_for_the_acknowledgements_of_the_one_before() -> None:
    cursor = Cursor(0)
    dispatcher = ExclusiveDispatcher(cursor, FailoverChoice(0))
    first, second = consumer(1, permits=10), consumer(2, permits=10)
    dispatcher.add(first)
    dispatcher.add(second)
    for index in range(3):
        dispatcher.deliver(index, ENTRY, 1)
    dispatcher.remove(first)
    dispatcher.is_held_off = True
    assert dispatcher.next_wanted(10) is None
    for index in range(2):  # they were on their way
        cursor.acknowledge(index)
    dispatcher.resume()
    assert dispatcher.next_wanted(10) == 2


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("limit", ["max_unacked_per_consumer", "max_unacked_per_subscription"])
async def test_messages_of_a_batch_count_one_by_one(
    world: World, store: MemoryStore, kind: SubscriptionType, limit: str
) -> None:
    """One slow message of each batch does not block a consumer as whole batches would."""
    world.policies = replace(world.policies, **{limit: 8})  # type: ignore[arg-type]
    topic = await topic_on(world, store)
    billing, outcomes = await topic.subscribe("billing", start=0), Outcomes()
    for _ in range(4):
        outcomes.publish_bytes(topic.ledger, encode_entry_of("p", 0, 1, [b"x"] * 4, None))
    await turns(lambda: len(outcomes.confirmed) == 4)
    consumer, heard = listen(billing, kind)
    await turns(lambda: len(heard.positions) == 2)
    assert consumer.state.pending_messages == 8
    billing.acknowledge([(position, 0b1000) for position in heard.positions[:2]])
    assert consumer.state.pending_messages == 2
    await turns(lambda: len(heard.positions) == 4)
    billing.acknowledge([(position, 0b1000) for position in heard.positions])
    assert consumer.state.pending_messages == 4
    billing.acknowledge([(position, None) for position in heard.positions])
    assert consumer.state.pending_messages == 0
    assert not consumer.state.is_blocked
    assert not billing.dispatcher.is_blocked


def test_the_rates_of_tenants_are_bounded_in_number_and_follow_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_budget, "TENANTS_MAX", 2)
    budget = PublishBudget(0)
    assert not budget.is_rated
    assert budget.spend("a", 1, 1 << 30, 0.0) == 0
    budget.limit(0, 0, 100)
    assert budget.is_rated
    now = time.monotonic()
    assert budget.spend("a", 1, 1_000, now) == pytest.approx(9, abs=1.1)
    assert budget.spend("b", 1, 1, now) == 0
    assert budget.spend("a", 1, 1, now) > 0
    assert budget.spend("c", 1, 1, now) == 0  # b is forgotten: a published later
    assert len(budget._tenants) == 2
    assert budget.spend("a", 1, 1, now) > 0
    budget.limit(0, 0, 10_000)
    assert budget.spend("a", 1, 1, time.monotonic()) == 0
