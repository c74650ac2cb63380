"""The series of topics: bounded, whatever a broker has loaded, and nothing is left out of their sums."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic import series
from heliograph.actors.broker.topic.series import topic_series
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metrics.broker import HIDDEN, TOPIC_METRICS
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.topic_world import listen, publish, topic_on
from tests.unit.broker.world import World, turns


def small(number: int, rate: float) -> Any:
    """A topic without subscriptions and ledgers."""
    record = SimpleNamespace(ledgers=(), pieces=())
    ledger = SimpleNamespace(record=record, writer=SimpleNamespace(ledger_id=0, length=0))
    name = TopicName.parse(f"persistent://public/n{number % 2}/t{number}")
    admission = SimpleNamespace(published=lambda now: (rate, 10 * rate))
    return SimpleNamespace(name=name, admission=admission, ledger=ledger, producers={}, subscriptions={})


async def test_a_topic_has_all_series_and_so_has_its_subscription(world: World, store: MemoryStore) -> None:
    topic = await topic_on(world, store)
    await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a", "b", "c")
    rows, hidden = await topic_series([topic])
    assert hidden == 0
    assert rows.keys() == {metric.name for metric in TOPIC_METRICS}
    labels = ("public/default", str(topic.name))
    assert rows["heliograph_subscription_backlog_messages"] == [((*labels, "s"), 3)]
    assert rows["heliograph_namespace_backlog_messages"] == [(("public/default",), 3)]
    ((_, stored),) = rows["heliograph_topic_stored_bytes"]
    assert stored > 0
    for metric in TOPIC_METRICS:
        assert all(len(values) == len(metric.labels) for values, _ in rows[metric.name])


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


async def test_what_was_delivered_is_counted_once_and_redelivery_has_no_latency(
    world: World, store: MemoryStore
) -> None:
    topic = await topic_on(world, store)
    subscription = await topic.subscribe("s", start=0)
    traffic = topic.setting.traffic
    await publish(topic.ledger, "a", "b")
    consumer, _ = listen(subscription, SubscriptionType.SHARED)
    await turns(lambda: traffic.messages_out == 2)
    assert sum(traffic.delivery_latency.counts) == 2
    subscription.redeliver(consumer, [])
    await turns(lambda: traffic.messages_out == 4)
    assert sum(traffic.delivery_latency.counts) == 2
