"""The metrics of topics and subscriptions, bounded: the largest topics one by one, all others added up by namespace.

A broker may have any number of topics, and Prometheus keeps every series that it ever saw. So topics have series of
their own if they are among the first by rate or by backlog, or of dead letters, or are watched (I15). So has the
history that the broker keeps of them in memory.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.subscription.message_count import ReadAllowance, message_backlog
from heliograph.actors.broker.subscription.stats import subscription_rates
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.stats import TOPICS_A_TURN, RateSampler, count_backlogs, storage_size
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import HeliographError, InvalidTopicNameError
from heliograph.metrics.broker import BROKER_METRICS, HIDDEN
from heliograph.metrics.history import SAMPLES, STEP_SECONDS, History
from heliograph.protocol.topic_name import TopicName

TOPICS_SHOWN_MAX = 200  # by rate, and as many by backlog  # I15
DEAD_LETTERS_SHOWN_MAX = 50  # topics of dead letters, those with most messages first  # I15
SUBSCRIPTIONS_SHOWN_MAX = 20  # of one topic, the largest backlogs first  # I15
READS_MAX = 100  # entries that are read to count backlogs, and as many to know their age  # I15
DEAD_SUFFIX = "-DLQ"  # of the names of topics to which clients send dead letters, as Pulsar's do
FRESH_TOPICS_MAX = 1_000  # loaded topics up to which every scrape looks at all of them
PASS_SECONDS = 60.0  # between two looks at all of more topics; rates are those of a minute

TOPICS_KEPT_MAX = 40  # by rate, as many by backlog, and as many that were asked for  # I15
SUBSCRIPTIONS_KEPT_MAX = 5  # of one topic, those furthest behind  # I15
SERIES_MAX = 1_000  # of a broker, with those of its own: 3 MB  # I15
ASKED_SECONDS = SAMPLES * STEP_SECONDS  # for which a topic is kept after a caller asked for it

Rows = dict[str, list[tuple[tuple[str, ...], float]]]


class _Figures(NamedTuple):
    """The facts that decide whether a topic is shown."""

    topic: BrokerTopic
    messages_rate: float
    bytes_rate: float
    backlog: int
    dead_letters: int | None  # that it has ever taken; None: it is no topic of dead letters


class TopicSeries:
    """The series of a broker's topics, for scrape after scrape.

    Of many topics the figures that decide which are shown, and the sums of the others, are up to ``PASS_SECONDS`` old:
    a pass over 10,000 topics takes 0.15 s of processor time. The shown values are always current.
    """

    def __init__(self) -> None:
        self._found: list[_Figures] = []  # of many topics; forgotten PASS_SECONDS after they were looked at

    async def rows(self, topics: Sequence[BrokerTopic], watched: Collection[str] = ()) -> tuple[Rows, int]:
        """Return the rows of ``topic_series``."""
        if len(topics) <= FRESH_TOPICS_MAX:
            return await topic_series(topics, watched)
        if not self._found:
            self._found = await _figures(topics)
            asyncio.get_running_loop().call_later(PASS_SECONDS, self._forget)
        return await _series(self._found, watched)

    def _forget(self) -> None:
        self._found = []


async def topic_series(topics: Iterable[BrokerTopic], watched: Collection[str] = ()) -> tuple[Rows, int]:
    """Return the samples of ``TOPIC_METRICS`` by metric, and how many topics have none of their own.

    The loaded topics are looked at in turns of the event loop, so a topic may end meanwhile; it is counted then.

    Args:
        watched: names of topics that have series of their own in any case, with their partitions.
    """
    return await _series(await _figures(topics), watched)


async def _figures(topics: Iterable[BrokerTopic]) -> list[_Figures]:
    found: list[_Figures] = []
    allowed = ReadAllowance(READS_MAX)
    for number, topic in enumerate(topics):
        if number % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
        await count_backlogs(topic, allowed)
        messages, size = topic.admission.published(time.monotonic())
        named = (one for one in topic.subscriptions.values() if not one.is_internal)
        backlog = sum(message_backlog(one, topic.ledger).messages for one in named)
        dead = topic.ledger.messages if topic.name.partitioned_name.endswith(DEAD_SUFFIX) else None
        found.append(_Figures(topic, messages, size, backlog, dead))
    return found


async def _series(known: Sequence[_Figures], watched: Collection[str]) -> tuple[Rows, int]:
    shown, rows, hidden = await asyncio.to_thread(_ranked, known, watched)
    ages = ReadAllowance(READS_MAX)
    for number, one in enumerate(shown):
        if number % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
        _add_topic(rows, one)
        await _add_ages(rows, one.topic, ages)
    return rows, hidden


def _ranked(known: Sequence[_Figures], watched: Collection[str]) -> tuple[list[_Figures], Rows, int]:
    """Return the topics that are shown, the sums of namespaces and of the other topics, and how many those are.

    It runs on a thread, because it takes 30 ms for 10,000 topics, and changes nothing.
    """
    found = [one for one in known if one.topic.is_open]
    firsts = (
        heapq.nlargest(TOPICS_SHOWN_MAX, found, lambda one: one.messages_rate),
        heapq.nlargest(TOPICS_SHOWN_MAX, found, lambda one: one.backlog),
        heapq.nlargest(
            DEAD_LETTERS_SHOWN_MAX, (one for one in found if one.dead_letters), lambda one: one.dead_letters or 0
        ),
        (one for one in found if watched and one.topic.name.partitioned_name in watched),
    )
    shown = {id(one.topic): one for one in itertools.chain(*firsts)}
    rows: Rows = {}
    _add_namespaces(rows, found)
    _add_hidden(rows, [one for one in found if id(one.topic) not in shown])
    return list(shown.values()), rows, len(found) - len(shown)


def _add_namespaces(rows: Rows, found: Iterable[_Figures]) -> None:
    sums: dict[str, list[float]] = {}
    for topic, messages, size, backlog, _ in found:
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
        "stored_bytes": (stored := storage_size(topic)),
        "backlog_bytes": _backlog_bytes(topic, stored),
        "producers": len(topic.producers),
        "subscriptions": sum(not each.is_internal for each in topic.subscriptions.values()),
        "consumers": sum(len(each.consumers) for each in topic.subscriptions.values()),
    }
    if one.dead_letters is not None:
        values["dead_letters"] = one.dead_letters
    _add(rows, "topic", labels, values.items())
    for name, subscription in _shown_subscriptions(topic):
        _add(rows, "subscription", (*labels, name), _subscription_values(subscription, topic.ledger, now).items())


def _backlog_bytes(topic: BrokerTopic, stored: int) -> int:
    entries = topic.ledger.chain.end - topic.ledger.chain.first
    largest = max((each.backlog for each in topic.subscriptions.values() if not each.is_internal), default=0)
    return stored * largest // entries if entries else 0


def _shown_subscriptions(topic: BrokerTopic) -> list[tuple[str, Subscription]]:
    named = [(name, each) for name, each in topic.subscriptions.items() if not each.is_internal]
    return heapq.nlargest(SUBSCRIPTIONS_SHOWN_MAX, named, lambda item: item[1].backlog)


async def _add_ages(rows: Rows, topic: BrokerTopic, allowed: ReadAllowance) -> None:
    """Add how old the oldest unacknowledged entries are, by the topic's clock, and how old they may be."""
    shown = _shown_subscriptions(topic)
    if not shown:
        return
    limit, now_ms = topic.ledger.policies.backlog_quota_seconds, topic.ledger.ages.now_ms()
    for name, subscription in shown:
        labels = (topic.name.namespace, str(topic.name), name)
        stored_ms = await oldest_ms(subscription, allowed)
        if stored_ms is not None:
            age = (now_ms - stored_ms) / 1000 if stored_ms else 0.0
            _add(rows, "subscription", labels, (("oldest_unacknowledged_seconds", max(age, 0.0)),))
        if limit >= 0:
            _add(rows, "subscription", labels, (("age_limit_seconds", limit),))


async def oldest_ms(subscription: Subscription, allowed: ReadAllowance) -> int | None:
    """Return when the first entry of a backlog was stored; 0: there is no backlog, None: that cannot be read now."""
    index, reader = max(subscription.cursor.mark, subscription.chain.first), subscription.reader
    if not subscription.backlog or index >= subscription.chain.end:
        return 0
    if subscription.oldest[0] != index:
        if reader.cached(index) is None:
            if not allowed.reads:
                return None
            allowed.reads -= 1
        try:
            subscription.oldest = (index, await reader.stored_ms(index))
        except HeliographError:
            return None
    return subscription.oldest[1] or None


def _subscription_values(subscription: Subscription, ledger: ManagedLedger, now: float) -> dict[str, float]:
    delivered, size, acknowledged, _ = subscription_rates(subscription, now)
    consumers = subscription.consumers.values()
    return {
        "out_messages_rate": delivered,
        "out_bytes_rate": size,
        "delayed_entries": subscription.delays.index.count,
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
        for place, value in enumerate(one[1:4]):
            of_namespace[place] += value
    for namespace, (messages, size, backlog) in sums.items():
        labels = (namespace, HIDDEN)
        _add(rows, "topic", labels, (("in_messages_rate", messages), ("in_bytes_rate", size)))
        _add(rows, "subscription", (*labels, HIDDEN), (("backlog_messages", backlog),))


def _add(rows: Rows, kind: str, labels: tuple[str, ...], values: Iterable[tuple[str, float]]) -> None:
    for name, value in values:
        rows.setdefault(f"heliograph_{kind}_{name}", []).append((labels, value))


COUNTED = ("topics", "producers", "subscriptions", "consumers", "publishes_pending")


class LoadedTopics(Protocol):
    """The part of ``Topics`` that the sums and the history need."""

    rates: RateSampler

    @property
    def count(self) -> int:
        """Return how many topics are loaded."""

    @property
    def loaded(self) -> list[BrokerTopic]:
        """Return the loaded topics."""

    def find(self, name: TopicName) -> BrokerTopic | None:
        """Return the topic if it is loaded."""


class _Counts(NamedTuple):
    """The numbers that one topic adds to the sums."""

    producers: int
    subscriptions: int
    consumers: int
    publishes_pending: int

    @staticmethod
    def of(topic: BrokerTopic) -> _Counts:
        consumers = sum(len(one.consumers) for one in topic.subscriptions.values())
        return _Counts(len(topic.producers), len(topic.subscriptions), consumers, topic.ledger.pending)


class TopicSums:
    """Sums over the loaded topics. Only what a topic adds is counted again when something happened in it, so no error
    stays in a sum.

    Attributes:
        behind: the topics with a backlog, and the entries of the backlogs of all their subscriptions.
    """

    def __init__(self, changed: ChangedTopics, topics: LoadedTopics) -> None:
        self.behind: dict[TopicActivity, int] = {}
        self._changed = changed
        self._topics = topics
        self._counts: dict[TopicActivity, _Counts] = {}  # of each loaded topic
        self._sums = [0] * len(_Counts._fields)

    async def count(self) -> None:
        """Count the topics in which something happened, in turns of the event loop."""
        for number, activity in enumerate(self._changed.take()):
            self._count(activity)
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)

    def told(self) -> dict[str, int]:
        """Return the sums for the broker's statistics. If something happened in many topics, they are those of the
        latest count, so that no turn of the event loop looks at all of them."""
        if len(self._changed) <= FRESH_TOPICS_MAX:
            for activity in self._changed.take():
                self._count(activity)
        return dict(zip(COUNTED, (self._topics.count, *self._sums), strict=True))

    def _count(self, activity: TopicActivity) -> None:
        topic = self._topics.find(activity.name)
        before, now = self._counts.pop(activity, _NOTHING), _NOTHING
        self.behind.pop(activity, None)
        if topic is not None and topic.activity is activity:
            now = self._counts[activity] = _Counts.of(topic)
            if backlog := sum(one.backlog for one in topic.subscriptions.values() if not one.is_internal):
                self.behind[activity] = backlog
        if now != before:
            self._sums = [total + new - old for total, new, old in zip(self._sums, now, before, strict=True)]
        assert min(self._sums) >= 0, "a topic leaves the sums with what it added"


_NOTHING = _Counts(0, 0, 0, 0)


class BrokerHistory:
    """The history of a broker and of its topics. Keys of topics have the metric, the topic, and the subscription.

    Attributes:
        sums: over the loaded topics.
    """

    def __init__(self, changed: ChangedTopics, topics: LoadedTopics) -> None:
        self.sums = TopicSums(changed, topics)
        self._history = History(SERIES_MAX)
        self._topics = topics
        self._asked: dict[str, float] = {}  # when a topic was asked for last
        self._counted: set[str] = set()  # topics whose counters were read at the latest sample

    async def sample(self, statistics: Mapping[str, Any]) -> None:
        """Take the samples of this step, in turns of the event loop: of topics that are not at rest, that are behind,
        or that were asked for; of few topics, all are looked at.

        Args:
            statistics: the broker's, of which the keys of ``BROKER_METRICS`` count, without what its topics know.
        """
        now = time.monotonic()
        self._history.begin()
        await self.sums.count()
        self._history.sample(BROKER_METRICS, {**statistics, **self.sums.told()})
        self._asked = {name: at for name, at in self._asked.items() if now - at < ASKED_SECONDS}
        shown: dict[str, BrokerTopic] = {}
        for topic in [*await self._fastest(now), *await self._furthest_behind(), *map(self._find, self._asked)]:
            if topic is not None:
                shown[str(topic.name)] = topic
        self._history.forget(("publish", name) for name in self._counted - shown.keys())  # room for those of others
        self._counted = set(shown)
        for number, topic in enumerate(shown.values()):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            self._sample_topic(topic, now)

    async def _fastest(self, now: float) -> list[BrokerTopic]:
        moving = self._topics.loaded
        if len(moving) > FRESH_TOPICS_MAX:
            moving = [one for each in self._topics.rates.moving if (one := self._topics.find(each.name)) is not None]
        found: list[tuple[float, int]] = []
        for number, topic in enumerate(moving):
            if number % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
            found.append((topic.admission.published(now)[0], number))
        return [moving[number] for _, number in heapq.nlargest(TOPICS_KEPT_MAX, found)]

    async def _furthest_behind(self) -> list[BrokerTopic | None]:
        backlogs = list(self.sums.behind.items())
        # 10 ms for 100,000
        first = await asyncio.to_thread(lambda: heapq.nlargest(TOPICS_KEPT_MAX, backlogs, itemgetter(1)))
        return [self._topics.find(activity.name) for activity, _ in first]

    def _find(self, name: str) -> BrokerTopic | None:
        try:
            return self._topics.find(TopicName.parse(name))
        except InvalidTopicNameError:
            return None

    def of_topic(self, name: str) -> dict[str, Any]:
        """Return the history of one topic, as ``History.told`` does, and keep it for two hours from now on."""
        if name in self._asked or len(self._asked) < TOPICS_KEPT_MAX:
            self._asked[name] = time.monotonic()
        return self._history.told(lambda key: len(key) > 1 and key[1] == name)

    def of_broker(self, names: Iterable[str] = ()) -> dict[str, Any]:
        """Return the history of the broker itself: of the named series, or of all."""
        wanted = set(names)
        return self._history.told(lambda key: len(key) == 1 and (not wanted or key[0].partition(":")[0] in wanted))

    def _sample_topic(self, topic: BrokerTopic, now: float) -> None:
        name, history, ledger = str(topic.name), self._history, topic.ledger
        messages, size = topic.admission.published(now)
        named = [(sub, one) for sub, one in topic.subscriptions.items() if not one.is_internal]
        rates = {sub: subscription_rates(one, now) for sub, one in named}
        values = {"in_messages_rate": messages, "in_bytes_rate": size}
        values["out_messages_rate"] = sum(found[0] for found in rates.values())
        values["out_bytes_rate"] = sum(found[1] for found in rates.values())
        grown = history.growth(("publish", name), ledger.entries_added, ledger.publish_seconds)
        if grown and grown[0]:
            values["publish_seconds"] = grown[1] / grown[0]
        for metric, value in values.items():
            history.note((metric, name), value)
        for sub, one in heapq.nlargest(SUBSCRIPTIONS_KEPT_MAX, named, lambda item: item[1].backlog):
            history.note(("backlog_messages", name, sub), message_backlog(one, ledger).messages)
            history.note(("acknowledged_entries_rate", name, sub), rates[sub][2])
