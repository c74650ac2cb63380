"""The series of topics: bounded, whatever a broker has loaded, and nothing is left out of their sums."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.metrics import Traffic
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic import series
from heliograph.actors.broker.topic.series import TopicSeries, TopicSums, topic_series
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metrics.broker import HIDDEN, TOPIC_METRICS
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.topic_world import FakeTopics, let_pass, listen, publish, topic_on
from tests.unit.broker.world import World, turns

# Series that topics have under conditions alone.
OF_SOME = {"heliograph_topic_dead_letters", "heliograph_subscription_age_limit_seconds"}


def small(number: int, rate: float, local: str = "") -> Any:
    """A topic without subscriptions and ledgers."""
    record = SimpleNamespace(ledgers=(), pieces=())
    ledger = SimpleNamespace(
        record=record, messages=0, chain=SimpleNamespace(first=0, end=0), writer=SimpleNamespace(ledger_id=0, length=0)
    )
    name = TopicName.parse(f"persistent://public/n{number % 2}/{local or f't{number}'}")
    admission = SimpleNamespace(published=lambda now: (rate, 10 * rate))
    return SimpleNamespace(name=name, admission=admission, ledger=ledger, producers={}, subscriptions={}, is_open=True)


async def test_a_topic_has_all_series_and_so_has_its_subscription(topic: BrokerTopic) -> None:
    await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a", "b", "c")
    rows, hidden = await topic_series([topic])
    assert hidden == 0
    assert rows.keys() | OF_SOME == {metric.name for metric in TOPIC_METRICS}
    labels = ("public/default", str(topic.name))
    assert rows["heliograph_subscription_backlog_messages"] == [((*labels, "s"), 3)]
    assert rows["heliograph_namespace_backlog_messages"] == [(("public/default",), 3)]
    ((_, stored),) = rows["heliograph_topic_stored_bytes"]
    assert stored > 0
    for metric in TOPIC_METRICS:
        assert all(len(values) == len(metric.labels) for values, _ in rows.get(metric.name, ()))


async def test_the_largest_topics_are_shown_and_the_others_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "TOPICS_SHOWN_MAX", 2)
    rows, hidden = await topic_series([small(number, float(number)) for number in range(50)])
    shown = rows["heliograph_topic_in_messages_rate"]
    named = [labels[1] for labels, _ in shown if labels[1] != HIDDEN]
    assert {"persistent://public/n1/t49", "persistent://public/n0/t48"} <= {*named}
    assert len(named) + hidden == 50
    assert len(named) <= 4  # two by rate and two by backlog
    assert sum(value for _, value in shown) == sum(range(50))
    of_namespaces = dict(rows["heliograph_namespace_topics"])
    assert of_namespaces == {("public/n0",): 25, ("public/n1",): 25}


async def test_the_oldest_unacknowledged_entry_has_an_age_by_the_clock_of_the_topic(
    world: World, store: MemoryStore
) -> None:
    world.policies = replace(world.policies, backlog_quota_seconds=60)
    topic = await topic_on(world, store)
    subscription = await topic.subscribe("s", start=0)
    rows, _ = await topic_series([topic])
    [(labels, age)] = rows["heliograph_subscription_oldest_unacknowledged_seconds"]
    assert (labels[2], age) == ("s", 0)
    await publish(topic.ledger, "a", "b")
    let_pass(topic, 100)
    rows, _ = await topic_series([topic])
    [(_, age)] = rows["heliograph_subscription_oldest_unacknowledged_seconds"]
    assert 100 <= age < 200
    assert rows["heliograph_subscription_age_limit_seconds"] == [(labels, 60)]
    subscription.skip(2)
    rows, _ = await topic_series([topic])
    assert rows["heliograph_subscription_oldest_unacknowledged_seconds"] == [(labels, 0)]


async def test_ages_take_a_bounded_number_of_reads_and_one_for_each_entry(
    topic: BrokerTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(topic.ledger, "a")
    await topic.subscribe("s", start=0)
    monkeypatch.setattr(series, "READS_MAX", 0)
    rows, _ = await topic_series([topic])
    assert "heliograph_subscription_oldest_unacknowledged_seconds" not in rows
    monkeypatch.setattr(series, "READS_MAX", 1)
    await topic_series([topic])
    monkeypatch.setattr(series, "READS_MAX", 0)
    rows, _ = await topic_series([topic])
    assert len(rows["heliograph_subscription_oldest_unacknowledged_seconds"]) == 1


async def test_watched_topics_and_those_of_dead_letters_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "TOPICS_SHOWN_MAX", 1)
    names = ("t", "watched-partition-3", "t-s-DLQ", "empty-DLQ")
    topics = [small(number, 9.0 - number, name) for number, name in enumerate(names)]
    topics[2].ledger.messages = 7
    rows, hidden = await topic_series(topics, {"persistent://public/n1/watched"})
    named = {labels[1].rpartition("/")[2] for labels, _ in rows["heliograph_topic_in_messages_rate"]}
    assert (named, hidden) == ({*names[:3], HIDDEN}, 1)
    [(labels, letters)] = rows["heliograph_topic_dead_letters"]
    assert (labels[1], letters) == ("persistent://public/n0/t-s-DLQ", 7)


async def test_of_many_topics_all_are_looked_at_once_a_minute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "FRESH_TOPICS_MAX", 3)
    later: list[Any] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda seconds, call: later.append((seconds, call)))
    topics, known = [small(number, 1.0) for number in range(4)], TopicSeries()

    async def total() -> float:
        rows, _ = await known.rows(topics)
        return sum(value for _, value in rows["heliograph_topic_in_messages_rate"])

    assert await total() == 4
    for topic in topics:
        topic.admission.published = lambda _: (5.0, 50.0)
    assert await total() == 4
    topics[0].is_open = False  # another broker has it now, and tells of it
    assert await total() == 3
    topics[0].is_open = True
    [(seconds, forget)] = later
    assert seconds == series.PASS_SECONDS
    forget()
    assert not known._found, "nobody may ask again, and a topic that is not loaded any more takes memory"
    assert await total() == 20
    del topics[3]
    assert await total() == 15, "of few topics every look is of now"


def test_no_turn_counts_what_many_topics_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "FRESH_TOPICS_MAX", 1)
    topics = [small(number, 1.0) for number in range(2)]
    for topic in topics:
        topic.producers, topic.ledger.pending = {1: None}, 2
    loaded = FakeTopics(topics)
    sums = TopicSums(loaded.changed, loaded)
    assert sums.told() == {**dict.fromkeys(series.COUNTED, 0), "topics": 2}
    asyncio.run(sums.count())
    assert sums.told()["publishes_pending"] == 4
    topics[0].ledger.pending = 9
    topics[0].activity.note()
    loaded.remove(topics[1])
    monkeypatch.setattr(series, "FRESH_TOPICS_MAX", 2)
    assert sums.told() == {"topics": 1, "producers": 1, "subscriptions": 0, "consumers": 0, "publishes_pending": 9}
    loaded.remove(topics[0])
    loaded.add(topics[0])  # it was closed and opened again between two counts
    assert sums.told()["publishes_pending"] == 9


def test_watched_topics_may_have_short_names_and_must_have_valid_ones() -> None:
    config = BrokerConfig("b", watched_topics="orders, persistent://t/n/x-partition-1")
    assert config.watched == {"persistent://public/default/orders", "persistent://t/n/x"}
    with pytest.raises(InvalidConfigError) as refused:
        BrokerConfig("b", watched_topics="a/b/c/d/e")
    assert refused.value.field == "watched_topics"


async def test_acknowledgements_and_reads_are_timed(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    traffic = topic.setting.traffic
    await publish(topic.ledger, "a", "b")
    for position in [topic.ledger.chain.position_at(index) for index in range(2)]:
        written = subscription.acknowledge([(position, None)])
        assert written is not None
        await written
    assert sum(traffic.acknowledgement_latency.counts) == 2
    assert traffic.acknowledgement_latency.total > 0
    await topic.reader.read(0, 1, 1)
    assert sum(topic.reader._latency.counts) == 1  # type: ignore[attr-defined]


def test_one_turn_of_eight_is_timed() -> None:
    traffic, turns = Traffic(), [0]

    def turn() -> None:
        turns[0] += 1

    for _ in range(20):
        traffic.dispatch(turn)
    assert (turns[0], sum(traffic.told()["dispatch_duration"]["counts"])) == (20, 2)


async def test_what_was_delivered_is_counted_once_and_redelivery_has_no_latency(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    traffic = topic.setting.traffic
    await publish(topic.ledger, "a", "b")
    consumer, _ = listen(subscription, SubscriptionType.SHARED)
    await turns(lambda: traffic.messages_out == 2)
    assert sum(traffic.delivery_latency.counts) == 2
    subscription.redeliver(consumer, [])
    await turns(lambda: traffic.messages_out == 4)
    assert sum(traffic.delivery_latency.counts) == 2
