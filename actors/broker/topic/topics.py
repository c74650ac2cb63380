"""The topics that this broker has loaded. Each is loaded when it is first asked for, and once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.bundles import bundle_path
from heliograph.actors.broker.namespaces.catalog import Catalog, OnCreated
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.records.entry_stamp import NONE
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.subscription.setting import SubscriptionSetting
from heliograph.actors.broker.subscription.witness import Witness
from heliograph.actors.broker.topic.components import delete_components
from heliograph.actors.broker.topic.non_persistent import NonPersistentLedger, NonPersistentTopic
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.actors.broker.topic.series import BrokerHistory
from heliograph.actors.broker.topic.stats import RateSampler
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import SteadyClock
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ServiceNotReadyError, TopicNotFoundError
from heliograph.base.system.collector import FrozenHolder
from heliograph.metadata.model import Policies, TopicRecord, Versioned
from heliograph.metadata.session.clock import now
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

# Topics that are opened at once; others wait their turn, so that open topics are served meanwhile, also when a broker
# takes over all topics of another (I15).
LOADS_AT_ONCE_MAX = 64
CLOSES_AT_ONCE_MAX = 64  # the same, when it gives away a bundle or stops
CLOSE_SECONDS = 1.0  # after which a topic that waits for its bookies keeps no other one waiting

log = logging.getLogger(__name__)


class Topics:
    """The loaded topics by name. All calls on one event loop.

    Attributes:
        policy_changes: grows with every change of policies that this broker hears of.
        on_policies_missed: called with a topic just loaded when policies changed while it was being loaded.
        history: samples of the broker and of its busiest topics.
        ages: the clock that judges ages in all topics.
        upkeep, load: the topics in which something happened since the housekeeper, and the meter of load, looked.
        rates: takes the samples of topics in which something happened lately.
        entry_metadata: what clients see of the broker's metadata of entries, one of ``ENTRY_METADATA``.
    """

    def __init__(
        self, store: MetadataStore, ledgers: LedgersPort, catalog: Catalog, ownership: Ownership, cache: TailCache
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._catalog = catalog
        self._ownership = ownership
        self._cache = cache
        self._loaded: dict[TopicName, BrokerTopic] = {}
        self._by_bundle: dict[str, dict[TopicName, BrokerTopic]] = {}  # the same topics; no bundle without any
        self._loading: dict[TopicName, asyncio.Task[BrokerTopic]] = {}
        self._unloading: dict[TopicName, asyncio.Task[None]] = {}
        self._opening = asyncio.Semaphore(LOADS_AT_ONCE_MAX)
        self._is_stopping = False
        self.setting = SubscriptionSetting()  # of all subscriptions, from the broker's configuration
        self.entry_metadata = NONE
        self.policy_changes = 0
        self.on_policies_missed: Callable[[BrokerTopic], None] = lambda topic: None
        self.ages = SteadyClock()
        self.frozen = FrozenHolder()  # open topics, of which Python's collector looks at few
        queues = self._queues = tuple(ChangedTopics(1 << number) for number in range(4))
        self.upkeep, self.load, of_rates, of_sums = queues
        self.rates = RateSampler(of_rates, self.find)
        self.history = BrokerHistory(of_sums, self)
        ownership.on_lost = self._session_lost
        ownership.on_released = self._bundle_released
        ownership.on_reclaimed = self._check_bundle

    @property
    def loaded(self) -> list[BrokerTopic]:
        return list(self._loaded.values())

    @property
    def count(self) -> int:
        return len(self._loaded)

    @property
    def is_certain(self) -> bool:
        """Return whether the store says that this broker owns its bundles."""
        return self._ownership.is_certain

    def of_bundle(self, path: str) -> list[BrokerTopic]:
        """Return the loaded topics of a bundle."""
        return list(self._by_bundle.get(path, {}).values())

    def count_of_bundle(self, path: str) -> int:
        """Return how many topics of a bundle are loaded."""
        return len(self._by_bundle.get(path, {}))

    def split_bundle(self, path: str, at: int, halves: tuple[str, str]) -> None:
        """Note that a bundle was split: its topics are in one of the halves, the second of which begins at a hash."""
        topics = self._by_bundle.pop(path, {})
        for name, topic in topics.items():  # for 10,000 topics 7 ms  # I24
            topic.bundle = half = halves[name.bundle_hash >= at]
            self._by_bundle.setdefault(half, {})[name] = topic

    def find(self, name: TopicName) -> BrokerTopic | None:
        """Return the topic if it is loaded."""
        return self._loaded.get(name)

    def is_begun(self, name: TopicName) -> bool:
        """Return whether the topic is loaded, or being loaded."""
        return name in self._loaded or name in self._loading

    async def get(
        self, name: TopicName, *, may_create: bool = False, on_created: OnCreated | None = None
    ) -> BrokerTopic:
        """Return the topic; load it if it is not loaded.

        Args:
            may_create: create a topic that does not exist, if the namespace allows that.
            on_created: called if it was created for this caller.

        Raises:
            ServiceNotReadyError: this broker does not own it; look it up again.
            TopicNotFoundError, NamespaceNotFoundError: there is no such topic or namespace.
            UnsupportedError: it may not be created.
            NotEnoughBookiesError, LedgerRecoveryError: it cannot be opened now; try again.
        """
        topic = self._loaded.get(name)
        if topic is not None and topic.is_open:
            return topic
        task = self._loading.get(name)
        is_own = task is None
        if task is None:
            if self._is_stopping:
                raise ServiceNotReadyError("this broker is stopping")
            task = self._loading[name] = asyncio.get_running_loop().create_task(
                self._load(name, may_create, on_created)
            )
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        try:
            return await shielded(task)
        except TopicNotFoundError:
            if is_own or not may_create:
                raise
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if task.cancelled() and this is not None and not this.cancelling():
                raise ServiceNotReadyError(f"{name} is not served by this broker any more, look it up") from None
            raise
        # The caller that began the load may not have been allowed to create the topic.
        return await self.get(name, may_create=may_create, on_created=on_created)

    async def unload(self, name: TopicName, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop serving a topic in good order. Its next use loads it again.

        Args:
            before: awaited first, while the topic cannot be loaded. If it fails, the topic is abandoned.
        """
        topic = self._loaded.get(name)
        if topic is None:
            return
        task = self._unloading.get(name)
        if task is None:
            task = self._unloading[name] = asyncio.get_running_loop().create_task(_close(topic, before))
            task.add_done_callback(lambda _: self._unloading.pop(name, None))
        try:
            await shielded(task)
        finally:
            if task.done():
                self._forget(topic)

    async def unload_bundle(self, path: str, seconds_max: float) -> bool:
        """Stop serving the topics of a bundle, in good order as far as the time allows, and release the bundle.

        Args:
            path: of the bundle.
            seconds_max: for closing the topics; topics that take longer are abandoned.

        Returns:
            False when this broker does not own the bundle.
        """
        if not self._ownership.begin_release(path):
            return False
        try:
            if self._loading:  # a topic that is half open would fence its next owner
                await asyncio.wait(list(self._loading.values()), timeout=seconds_max)
            await self._unload(self.of_bundle(path), seconds_max)
        finally:
            await self._ownership.release(path)
        return True

    async def stop(self, seconds_max: float) -> None:
        """Stop serving all topics, in good order as far as the time allows."""
        self._is_stopping = True
        await self._unload(list(self.loaded), seconds_max)
        self.abandon_all(ServiceNotReadyError("this broker stopped"))

    async def _unload(self, topics: list[BrokerTopic], seconds_max: float) -> None:
        left, closing = iter(topics), set[asyncio.Task[None]]()

        async def close(topic: BrokerTopic) -> None:
            with contextlib.suppress(HeliographError):
                await self.unload(topic.name)

        async def close_some() -> None:
            for topic in left:
                closing.add(task := asyncio.create_task(close(topic)))
                task.add_done_callback(closing.discard)
                await asyncio.wait([task], timeout=CLOSE_SECONDS)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await asyncio.gather(*[close_some() for _ in range(min(len(topics), CLOSES_AT_ONCE_MAX))])
                await asyncio.gather(*closing, return_exceptions=True)
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        for topic in topics:
            if self._loaded.get(topic.name) is topic:
                topic.abandon(ServiceNotReadyError("the bundle goes to another broker"))

    def abandon_all(self, error: HeliographError) -> None:
        """Stop serving all topics at once (I13)."""
        for task in list(self._loading.values()):
            task.cancel()
        for topic in list(self._loaded.values()):
            topic.abandon(error)

    async def sample_rates(self) -> None:
        """Note the counters of the topics that are not at rest, for the rates that statistics show."""
        await self.rates.sample()

    async def _load(self, name: TopicName, may_create: bool, on_created: OnCreated | None) -> BrokerTopic:
        with needs_session():
            async with self._opening:
                return await self._open(name, may_create, on_created)

    async def _open(self, name: TopicName, may_create: bool, on_created: OnCreated | None) -> BrokerTopic:
        unloading = self._unloading.get(name)
        if unloading is not None:  # opening now would fence adds that are still being confirmed
            await asyncio.wait([unloading])
        previous = self._loaded.get(name)
        if previous is not None:
            self._forget(previous)
        changes = self.policy_changes
        known = self._catalog.known
        policies, own = (await known.namespace_of(name)).record, await known.topic_policies(name)
        bundle = bundle_path(name, policies)
        if not self._ownership.admits(bundle):
            raise ServiceNotReadyError(f"{name} is not served by this broker, look it up")
        created_with, found = await self._catalog.ensure(name, may_create=may_create, on_created=on_created)
        path = self._catalog.topic_path(name)
        applied = effective(policies, own.overrides, created_with, own.subscriptions)
        try:
            topic = await self._make(name, path, bundle, applied, found)
        except TopicNotFoundError:  # deleted since, or its deletion stopped half-way or is in progress: complete it
            await delete_components(path, self._store, self._ledgers)
            return await self._open(name, may_create, on_created)
        try:
            await topic.load_subscriptions()
        except BaseException:
            with contextlib.suppress(HeliographError):
                await topic.ledger.close()
            raise
        if not self._ownership.admits(bundle):  # I13
            topic.abandon(ServiceNotReadyError("the bundle went to another broker"))
            raise ServiceNotReadyError(f"{name} went to another broker, look it up")
        self._loaded[name] = topic
        self._by_bundle.setdefault(bundle, {})[name] = topic
        topic.activity.note()  # a job that took the note of its opening did not find it yet
        self.frozen.made(topic)
        topic.on_lost = self._forget
        if self.policy_changes != changes:
            self.on_policies_missed(topic)
        return topic

    async def _make(
        self, name: TopicName, path: str, bundle: str, policies: Policies, found: Versioned[TopicRecord] | None
    ) -> BrokerTopic:
        store, ledgers = self._store, self._ledgers
        if not name.is_persistent:
            passing = NonPersistentLedger(str(name), store, TopicRecord(str(name)), ledgers, policies)
            self._watch(passing, name)
            return NonPersistentTopic(name, path, bundle, passing, store, ledgers, policies, self.setting)
        ledger = await open_managed_ledger(
            str(name), path, store, ledgers, self._cache, policies, self.entry_metadata, found
        )
        self._watch(ledger, name)
        witness = Witness(lambda: self._ownership.is_in_doubt(bundle), now)
        if ledger.is_taken_over:
            witness.fenced(now())
            self.setting.traffic.taken_over += 1
        reader = TopicReader(ledger.chain, self._cache, ledgers, self.setting.traffic.read_latency)
        setting = replace(self.setting, witness=witness)
        return BrokerTopic(name, path, bundle, ledger, reader, store, ledgers, policies, setting)

    def _forget(self, topic: BrokerTopic) -> None:
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]
            self._leave_bundle(topic)
            self.frozen.ended(topic)
            topic.activity.note()

    def _watch(self, ledger: ManagedLedger, name: TopicName) -> None:
        ledger.traffic, ledger.ages = self.setting.traffic, self.ages
        ledger.activity = TopicActivity(name, self._queues)

    def _leave_bundle(self, topic: BrokerTopic) -> None:
        topics = self._by_bundle[topic.bundle]
        del topics[topic.name]
        if not topics:
            del self._by_bundle[topic.bundle]

    def _session_lost(self) -> None:
        self.abandon_all(ServiceNotReadyError("this broker serves nothing any more"))

    async def _check_bundle(self, path: str) -> None:
        """Check the topics of a bundle that had no owner for a time, and abandon topics that another broker took over.

        Raises:
            ConnectionLossError: some topics could not be checked.
        """
        for topic in self.of_bundle(path):
            with contextlib.suppress(ServiceNotReadyError):
                await topic.ledger.check_ownership()  # I11, I13: an owner that takes over writes the record

    def _bundle_released(self, path: str) -> None:
        for topic in self.of_bundle(path):
            topic.abandon(ServiceNotReadyError("the bundle went to another broker"))


async def _close(topic: BrokerTopic, before: Callable[[], Awaitable[None]] | None) -> None:
    try:
        if before is not None:
            await before()
    except HeliographError as error:
        topic.abandon(error)
        raise
    await topic.close()
