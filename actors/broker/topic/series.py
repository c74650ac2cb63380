"""The metrics of topics and subscriptions, bounded: the largest topics one by one, all others added up by namespace.

A broker may have any number of topics, and Prometheus keeps every series that it ever saw. So topics have series of
their own if they are among the first by rate, or among the first by backlog (I15).
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.subscription.message_count import ReadAllowance, message_backlog
from heliograph.actors.broker.subscription.stats import subscription_rates
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.stats import count_backlogs, storage_size
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metrics.broker import HIDDEN

TOPICS_SHOWN_MAX = 200  # by rate, and as many by backlog  # I15
SUBSCRIPTIONS_SHOWN_MAX = 20  # of one topic, the largest backlogs first  # I15
READS_MAX = 100  # entries that are read to count backlogs  # I15
TOPICS_A_TURN = 20  # of the event loop, so that requests do not wait long

Rows = dict[str, list[tuple[tuple[str, ...], float]]]


class _Figures(NamedTuple):
    """What decides whether a topic is shown."""

    topic: BrokerTopic
    messages_rate: float
    bytes_rate: float
    backlog: int


async def topic_series(topics: Iterable[BrokerTopic]) -> tuple[Rows, int]:
    """Return the samples of ``TOPIC_METRICS`` by metric, and how many topics have none of their own.

    The loaded topics are looked at in turns of the event loop, so a topic may end meanwhile; it is counted then.
    """
    found: list[_Figures] = []
    allowed = ReadAllowance(READS_MAX)
    for number, topic in enumerate(topics):
        if number % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
        await count_backlogs(topic, allowed)
        messages, size = topic.admission.published(time.monotonic())
        named = (one for one in topic.subscriptions.values() if not one.is_internal)
        backlog = sum(message_backlog(one, topic.ledger).messages for one in named)
        found.append(_Figures(topic, messages, size, backlog))
    shown = {
        id(one.topic): one
        for key in (lambda one: one.messages_rate, lambda one: one.backlog)
        for one in heapq.nlargest(TOPICS_SHOWN_MAX, found, key)
    }
    rows: Rows = {}
    _add_namespaces(rows, found)
    for number, one in enumerate(shown.values()):
        if number % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
        _add_topic(rows, one)
    _add_hidden(rows, [one for one in found if id(one.topic) not in shown])
    return rows, len(found) - len(shown)


def _add_namespaces(rows: Rows, found: Iterable[_Figures]) -> None:
    sums: dict[str, list[float]] = {}
    for topic, messages, size, backlog in found:
        of_namespace = sums.setdefault(topic.name.namespace, [0, 0.0, 0.0, 0])
        for place, value in enumerate((1, messages, size, backlog)):
            of_namespace[place] += value
    names = ("topics", "in_messages_rate", "in_bytes_rate", "backlog_messages")
    for namespace, values in sums.items():
        _add(rows, "namespace", (namespace,), zip(names, values, strict=True))


def _add_topic(rows: Rows, one: _Figures) -> None:
    topic, now = one.topic, time.monotonic()
    labels = (topic.name.namespace, str(topic.name))
    values: dict[str, Any] = {
        "in_messages_rate": one.messages_rate,
        "in_bytes_rate": one.bytes_rate,
        "stored_bytes": storage_size(topic),
        "producers": len(topic.producers),
    }
    _add(rows, "topic", labels, values.items())
    named = [(name, each) for name, each in topic.subscriptions.items() if not each.is_internal]
    for name, subscription in heapq.nlargest(SUBSCRIPTIONS_SHOWN_MAX, named, lambda item: item[1].backlog):
        _add(rows, "subscription", (*labels, name), _subscription_values(subscription, topic.ledger, now).items())


def _subscription_values(subscription: Subscription, ledger: ManagedLedger, now: float) -> dict[str, float]:
    delivered, _, acknowledged, _ = subscription_rates(subscription, now)
    consumers = subscription.consumers.values()
    return {
        "out_messages_rate": delivered,
        "acknowledged_entries_rate": acknowledged,
        "backlog_entries": subscription.backlog,
        "backlog_messages": message_backlog(subscription, ledger).messages,
        "unacknowledged_messages": sum(consumer.state.pending_messages for consumer in consumers),
        "redelivered_entries_rate": sum(consumer.rates(now).redelivered for consumer in consumers),
        "is_blocked": int(subscription.dispatcher.is_blocked),
        "consumers": len(consumers),
    }


def _add_hidden(rows: Rows, hidden: Iterable[_Figures]) -> None:
    sums: dict[str, list[float]] = {}
    for one in hidden:
        of_namespace = sums.setdefault(one.topic.name.namespace, [0.0, 0.0, 0.0])
        for place, value in enumerate(one[1:]):
            of_namespace[place] += value
    for namespace, (messages, size, backlog) in sums.items():
        labels = (namespace, HIDDEN)
        _add(rows, "topic", labels, (("in_messages_rate", messages), ("in_bytes_rate", size)))
        _add(rows, "subscription", (*labels, HIDDEN), (("backlog_messages", backlog),))


def _add(rows: Rows, kind: str, labels: tuple[str, ...], values: Iterable[tuple[str, float]]) -> None:
    for name, value in values:
        rows.setdefault(f"heliograph_{kind}_{name}", []).append((labels, value))
