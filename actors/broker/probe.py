"""The probe: a broker publishes to its own topic and consumes the message, so failures show without clients.

The topic takes the whole way of any other: ledgers on bookies, fsync, receipt, dispatch, acknowledgement. It is no
namespace's, so nobody finds it, and other brokers never own it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from typing_extensions import override

from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.entry_stamp import NONE
from heliograph.actors.broker.records.ledgers import LedgersPort, abandon_writer
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import ConsumerChannel, SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.components import delete_components, mark_deleting
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.actors.broker.topic.publishing import publish
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError, NamespaceNotFoundError, ServiceNotReadyError
from heliograph.base.interval import Interval
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.model import Persistence, Policies, TopicRecord
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.metric import Histogram
from heliograph.protocol.topic_name import TopicName

ROUND_SECONDS_MAX = 5.0  # a round that takes longer has failed
TRIM_ROUNDS = 500  # between two times that the ledgers of the topic are trimmed
CACHE_BYTES = 1 << 10  # of the topic's entries
PAYLOAD = b"probe"

log = logging.getLogger(__name__)


class ProbeChannel(ConsumerChannel):
    """The client of the probe's consumer: it notes that something was delivered."""

    peer = client_version = "probe"

    def __init__(self) -> None:
        self.delivered = asyncio.Event()
        self.position: Position | None = None

    @override
    def push(
        self,
        consumer: SubscriptionConsumer,
        position: Position,
        entry: TopicEntry,
        redelivery_count: int,
        bits: int | None,
        is_alone: bool,
        crashes: int = 0,
        lone_crashes: int = 0,
    ) -> None:
        self.position = position
        self.delivered.set()

    @override
    def close_consumer(self, consumer: SubscriptionConsumer) -> None:
        pass

    @override
    def probe(self) -> asyncio.Future[None]:
        raise AssertionError("nobody else consumes the probe")

    @override
    def reached_end(self, consumer: SubscriptionConsumer) -> None:
        pass

    @override
    def active_changed(self, consumer: SubscriptionConsumer, is_active: bool) -> None:
        pass


class Probe:
    """Publishes and consumes a message at intervals.

    Attributes:
        latency: of the rounds that went well, from publishing to delivery.
        rounds, failures: how many there were, and how many of them failed.
        is_failing: whether the latest one failed.
    """

    def __init__(self, broker_id: str, store: MetadataStore, ledgers: LedgersPort, catalog: Catalog) -> None:
        self.interval = Interval(0)
        self.latency = Histogram()
        self.rounds = self.failures = 0
        self.is_failing = False
        self._name = TopicName.parse(f"persistent://heliograph/probes/{broker_id}")
        self._path = paths.topic("heliograph", "probes", broker_id)
        self._store = store
        self._ledgers = ledgers
        self._catalog = catalog
        self._channel = ProbeChannel()
        self._topic: BrokerTopic | None = None
        self._subscription: Subscription | None = None
        self._consumer: SubscriptionConsumer | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="probe")

    async def stop(self) -> None:
        """Stop, and delete the topic if that is quick; else the next start of this broker uses it again."""
        try:
            async with asyncio.timeout(ROUND_SECONDS_MAX):
                await end_task(self._task)
                topic, self._topic = self._topic, None
                if topic is not None:
                    await topic.close()
                    await mark_deleting(self._path, self._store)
                    await delete_components(self._path, self._store, self._ledgers)
        except Exception as error:  # whatever it is, the broker stops
            log.warning("the probe left its topic behind: %r", error)

    async def round(self) -> None:
        """Publish and consume one message, and note the outcome."""
        self.rounds += 1
        try:
            async with asyncio.timeout(ROUND_SECONDS_MAX):
                topic = self._topic
                if topic is None or not topic.is_open:  # a roll after an earlier round may have failed
                    topic = await self._open()
                began = time.perf_counter()
                await self._exchange(topic)
                self.latency.observe(time.perf_counter() - began)
                if self.rounds % TRIM_ROUNDS == 0:
                    topic.ledger.roll_if_due()
                    await topic.trim()
        except (HeliographError, TimeoutError) as error:
            self._failed(str(error) or f"no answer within {ROUND_SECONDS_MAX:.0f} s")
        except Exception as error:  # a bug of ours, by which nothing but this round ends
            self._failed("a bug", error)
        else:
            if self.is_failing:
                log.warning("the probe is well again")
            self.is_failing = False

    async def _run(self) -> None:
        while True:
            await self.interval.passes()
            await self.round()

    async def _exchange(self, topic: BrokerTopic) -> None:
        channel, subscription, consumer = self._channel, self._subscription, self._consumer
        assert subscription is not None, "a topic is opened with its subscription"
        assert consumer is not None, "a topic is opened with its consumer"
        channel.delivered.clear()
        subscription.flow(consumer, 1)
        await publish(topic, "probe", [PAYLOAD], None)
        await channel.delivered.wait()
        assert channel.position is not None, "it was delivered"
        subscription.acknowledge([(channel.position, None)], consumer)

    def _failed(self, why: str, bug: Exception | None = None) -> None:
        self.failures += 1
        if not self.is_failing:
            log.error("the probe failed: a message that this broker published was not consumed: %s", why, exc_info=bug)
        self.is_failing = True
        topic, self._topic = self._topic, None
        if topic is not None:
            topic.abandon(ServiceNotReadyError("the probe failed"))

    async def _open(self) -> BrokerTopic:
        with contextlib.suppress(NodeExistsError):
            record = TopicRecord(str(self._name))
            await self._store.create(self._path, codec.encode(record, self._path), parents=True)
        copies = Persistence()
        with contextlib.suppress(NamespaceNotFoundError):
            copies = (await self._catalog.policies(TopicName.parse("any"))).persistence  # the cluster's default
        policies = Policies(persistence=copies, retention_seconds=0)
        cache = TailCache(CACHE_BYTES)
        opened = await open_managed_ledger(
            str(self._name), self._path, self._store, self._ledgers, cache, policies, entry_metadata=NONE
        )
        reader = TopicReader(opened.chain, cache, self._ledgers)
        topic = BrokerTopic(self._name, self._path, "", opened, reader, self._store, self._ledgers, policies)
        topic.on_lost = lambda topic: abandon_writer(opened.writer)
        self._topic = topic  # from here on a failure abandons it
        await topic.load_subscriptions()
        subscription = self._subscription = await topic.subscribe("probe", start=None, is_durable=False)
        self._consumer = SubscriptionConsumer(1, "probe", 0, -1, self._channel)
        subscription.add_consumer(self._consumer, SubscriptionType.EXCLUSIVE)
        return topic
