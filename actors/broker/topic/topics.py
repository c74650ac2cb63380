"""The topics that this broker has loaded. Each is loaded when it is first asked for, and once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial

from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.bundles import bundle_path
from heliograph.actors.broker.namespaces.catalog import Catalog, OnCreated
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.entry_stamp import NONE
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.subscription.setting import SubscriptionSetting
from heliograph.actors.broker.subscription.witness import Witness
from heliograph.actors.broker.topic.components import delete_components
from heliograph.actors.broker.topic.expiry import expire_by_policy
from heliograph.actors.broker.topic.idle_topics import IdleAction, IdleTopics, is_in_use
from heliograph.actors.broker.topic.non_persistent import NonPersistentLedger, NonPersistentTopic
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.actors.broker.topic.stats import sample_rates
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ServiceNotReadyError, TopicNotFoundError
from heliograph.metadata.model import Policies, TopicRecord
from heliograph.metadata.session.clock import now
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

HOUSEKEEPING_TOPICS_MAX = 20  # in one turn of the loop, so that requests do not wait long
UNLOADS_AT_ONCE_MAX = 32  # idle topics
# Topics that are opened at once; others wait their turn, so that open topics are served meanwhile, also when a broker
# takes over all topics of another (I15).
LOADS_AT_ONCE_MAX = 64

log = logging.getLogger(__name__)


class Topics:
    """The loaded topics by name. All calls on one event loop.

    Attributes:
        policy_changes: grows with every change of policies that this broker hears of.
        on_policies_missed: called with a topic just loaded when policies changed while it was being loaded.
        idle: decides what is done with topics that are not used.
        entry_metadata: what clients see of the broker's metadata of entries, one of ``ENTRY_METADATA``.
        delete_idle: deletes a topic that a policy wants gone because it is not used.
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
        self._loading: dict[TopicName, asyncio.Task[BrokerTopic]] = {}
        self._unloading: dict[TopicName, asyncio.Task[None]] = {}
        self._opening = asyncio.Semaphore(LOADS_AT_ONCE_MAX)
        self._is_stopping = False
        self.setting = SubscriptionSetting()  # of all subscriptions, from the broker's configuration
        self.entry_metadata = NONE
        self.policy_changes = 0
        self.on_policies_missed: Callable[[BrokerTopic], None] = lambda topic: None
        self.idle = IdleTopics(0)
        self.delete_idle: Callable[[BrokerTopic], Awaitable[None]] | None = None
        ownership.on_lost = self._session_lost
        ownership.on_released = self._bundle_released
        ownership.on_reclaimed = self._check_bundle

    @property
    def loaded(self) -> Iterable[BrokerTopic]:
        return list(self._loaded.values())

    def find(self, name: TopicName) -> BrokerTopic | None:
        """Return the topic if it is loaded."""
        return self._loaded.get(name)

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
        if task is None:
            if self._is_stopping:
                raise ServiceNotReadyError("this broker is stopping")
            task = self._loading[name] = asyncio.get_running_loop().create_task(
                self._load(name, may_create, on_created)
            )
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        try:
            return await shielded(task)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if task.cancelled() and this is not None and not this.cancelling():
                raise ServiceNotReadyError(f"{name} is not served by this broker any more, look it up") from None
            raise

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
            seconds_max: for closing the topics; those that take longer are abandoned.

        Returns:
            False when this broker does not own the bundle.
        """
        if not self._ownership.begin_release(path):
            return False
        try:
            if self._loading:  # a topic that is half open would fence its next owner
                await asyncio.wait(list(self._loading.values()), timeout=seconds_max)
            await self._unload([topic for topic in self.loaded if topic.bundle == path], seconds_max)
        finally:
            await self._ownership.release(path)
        return True

    async def stop(self, seconds_max: float) -> None:
        """Stop serving all topics, in good order as far as the time allows."""
        self._is_stopping = True
        await self._unload(list(self.loaded), seconds_max)
        self.abandon_all(ServiceNotReadyError("this broker stopped"))

    async def _unload(self, topics: list[BrokerTopic], seconds_max: float) -> None:
        closing = [asyncio.create_task(self.unload(topic.name)) for topic in topics]
        if closing:
            _, late = await asyncio.wait(closing, timeout=seconds_max)
            for task in late:
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
        """Note the counters of every loaded topic for the rates that statistics show: one scan, no timer per topic.

        10,000 topics with a producer and a consumer each take about 60 ms, so the scan lets other work run in between.
        """
        for number, topic in enumerate(self.loaded):
            if number % HOUSEKEEPING_TOPICS_MAX == 0:
                await asyncio.sleep(0)
            sample_rates(topic, time.monotonic())

    async def housekeep(self) -> None:
        """Roll ledgers that are due, trim, expire, start compactions that are due, and close or delete idle topics.

        All that changes metadata, so nothing is done while the store is out of reach.
        """
        if not self._ownership.is_certain:
            return
        idle: list[BrokerTopic] = []
        for number, topic in enumerate(self.loaded):
            if number % HOUSEKEEPING_TOPICS_MAX == 0:
                await asyncio.sleep(0)
            topic.ledger.roll_if_due()
            topic.compaction.start_if_due(topic.policies.compaction_threshold_bytes)
            for duty in (partial(expire_by_policy, topic), topic.trim, topic.housekeep):
                if topic.is_open:
                    await self._run_duty(duty, topic)
            action = self.idle.look(topic)
            if action is IdleAction.UNLOAD:
                idle.append(topic)
            elif action is IdleAction.DELETE and self.delete_idle is not None:
                await self._run_duty(partial(self.delete_idle, topic), topic)
        for first in range(0, len(idle), UNLOADS_AT_ONCE_MAX):
            await asyncio.gather(*(self._unload_idle(topic) for topic in idle[first : first + UNLOADS_AT_ONCE_MAX]))

    async def _run_duty(self, duty: Callable[[], Awaitable[object]], topic: BrokerTopic) -> None:
        """Run one duty of a topic. Its failure is logged and does not stop the other duties."""
        try:
            await duty()
        except ServiceNotReadyError as error:
            topic.abandon(error)
        except HeliographError as error:
            log.warning("%s: housekeeping failed: %s", topic.name, error)

    async def _unload_idle(self, topic: BrokerTopic) -> None:
        if is_in_use(topic):
            return
        topic.begin_close()
        try:
            await self.unload(topic.name)
        except HeliographError as error:
            topic.abandon(error)

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
        policies, own = await asyncio.gather(self._catalog.policies(name), self._catalog.topic_policies(name))
        bundle = bundle_path(name, policies)
        if not self._ownership.admits(bundle):
            raise ServiceNotReadyError(f"{name} is not served by this broker, look it up")
        created_with = await self._catalog.ensure(name, may_create=may_create, on_created=on_created)
        path = self._catalog.topic_path(name)
        applied = effective(policies, own.overrides, created_with, own.subscriptions)
        try:
            topic = await self._make(name, path, bundle, applied)
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
        topic.on_lost = lambda: self._forget(topic)
        if self.policy_changes != changes:
            self.on_policies_missed(topic)
        return topic

    async def _make(self, name: TopicName, path: str, bundle: str, policies: Policies) -> BrokerTopic:
        store, ledgers = self._store, self._ledgers
        if not name.is_persistent:
            passing = NonPersistentLedger(str(name), store, TopicRecord(str(name)), ledgers, policies)
            passing.traffic = self.setting.traffic
            return NonPersistentTopic(name, path, bundle, passing, store, ledgers, policies, self.setting)
        ledger = await open_managed_ledger(
            str(name), path, store, ledgers, self._cache, policies, entry_metadata=self.entry_metadata
        )
        ledger.traffic = self.setting.traffic
        witness = Witness(lambda: self._ownership.is_in_doubt(bundle), now)
        if ledger.is_taken_over:
            witness.fenced(now())
        reader = TopicReader(ledger.chain, self._cache, ledgers)
        setting = replace(self.setting, witness=witness)
        return BrokerTopic(name, path, bundle, ledger, reader, store, ledgers, policies, setting)

    def _forget(self, topic: BrokerTopic) -> None:
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]

    def _session_lost(self) -> None:
        self.abandon_all(ServiceNotReadyError("this broker serves nothing any more"))

    async def _check_bundle(self, path: str) -> None:
        """Check the topics of a bundle that had no owner for a time, and abandon those that another broker took over.

        Raises:
            ConnectionLossError: some topics could not be checked.
        """
        for topic in self.loaded:
            if topic.bundle == path:
                with contextlib.suppress(ServiceNotReadyError):
                    await topic.ledger.check_ownership()  # I11, I13: an owner that takes over writes the record

    def _bundle_released(self, path: str) -> None:
        for topic in self.loaded:
            if topic.bundle == path:
                topic.abandon(ServiceNotReadyError("the bundle went to another broker"))


async def _close(topic: BrokerTopic, before: Callable[[], Awaitable[None]] | None) -> None:
    try:
        if before is not None:
            await before()
    except HeliographError as error:
        topic.abandon(error)
        raise
    await topic.close()
