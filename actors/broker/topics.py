"""The topics that this broker has loaded; each is loaded when it is first asked for, and once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from actors.broker.bundles import bundle_path
from actors.broker.catalog import Catalog
from actors.broker.expiry import expire_by_policy
from actors.broker.idle_topics import Fate, IdleTopics, is_in_use
from actors.broker.ledgers import Ledgers
from actors.broker.non_persistent import NonPersistentTopic, PassingLedger
from actors.broker.ownership import Ownership
from actors.broker.policies import effective
from actors.broker.session_guard import needs_session
from actors.broker.subscription import SubscriptionSetting
from actors.broker.tail_cache import TailCache
from actors.broker.topic import Topic
from actors.broker.topic_opening import BeingDeletedError, open_managed_ledger
from actors.broker.topic_parts import delete_parts
from actors.broker.topic_reader import TopicReader
from heliograph.errors import HeliographError, ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName
from metadata.model import Policies, TopicRecord
from metadata.store import MetadataStore

HOUSEKEEPING_TOPICS_MAX = 20  # looked at in one turn of the loop, which others wait for
UNLOADS_AT_ONCE_MAX = 32  # topics that nobody uses

log = logging.getLogger(__name__)


class Topics:
    """All calls on one event loop.

    Attributes:
        policy_changes: grows with every change of policies that this broker hears of.
        on_policies_missed: called with a topic just loaded when policies changed while it was.
        idle: says what becomes of topics that nobody uses.
        delete_idle: deletes a topic that policies want gone because nobody uses it.
    """

    def __init__(
        self, store: MetadataStore, ledgers: Ledgers, catalog: Catalog, ownership: Ownership, cache: TailCache
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._catalog = catalog
        self._ownership = ownership
        self._cache = cache
        self._loaded: dict[TopicName, Topic] = {}
        self._loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self._unloading: dict[TopicName, asyncio.Task[None]] = {}
        self._is_stopping = False
        self.setting = SubscriptionSetting()  # what subscriptions have from the broker's configuration
        self.policy_changes = 0
        self.on_policies_missed: Callable[[Topic], None] = lambda topic: None
        self.idle = IdleTopics(0)
        self.delete_idle: Callable[[Topic], Awaitable[None]] | None = None
        ownership.on_lost = self._session_lost
        ownership.on_released = self._bundle_released

    @property
    def loaded(self) -> Iterable[Topic]:
        """Every topic being served."""
        return list(self._loaded.values())

    def find(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded."""
        return self._loaded.get(name)

    async def get(self, name: TopicName, *, may_create: bool = False) -> Topic:
        """The topic, loaded if need be.

        Args:
            may_create: create it where the namespace allows that, when there is none of the name.

        Raises:
            ServiceNotReadyError: this broker does not own it; look it up.
            TopicNotFoundError, NamespaceNotFoundError, UnsupportedError.
            NotEnoughBookiesError, LedgerRecoveryError: it cannot be opened now; try again.
        """
        topic = self._loaded.get(name)
        if topic is not None and topic.is_open:
            return topic
        task = self._loading.get(name)
        if task is None:
            if self._is_stopping:
                raise ServiceNotReadyError("this broker is stopping")
            task = self._loading[name] = asyncio.get_running_loop().create_task(self._load(name, may_create))
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if task.cancelled() and this is not None and not this.cancelling():
                raise ServiceNotReadyError(f"{name} is not served by this broker any more, look it up") from None
            raise

    async def unload(self, name: TopicName, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop serving a topic in good order; whoever asks for it next loads it again.

        Args:
            before: to be done first, while nobody can load it; where that fails the topic is given up.
        """
        topic = self._loaded.get(name)
        if topic is None:
            return
        task = self._unloading.get(name)
        if task is None:
            task = self._unloading[name] = asyncio.get_running_loop().create_task(_close(topic, before))
            task.add_done_callback(lambda _: self._unloading.pop(name, None))
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._forget(topic)

    async def unload_bundle(self, path: str, seconds_max: float) -> bool:
        """Stop serving the topics of a bundle, in good order as far as that is possible in time, and give it up.

        Returns:
            False when the bundle is not ours.
        """
        if not self._ownership.begin_release(path):
            return False
        try:
            if self._loading:  # a topic half open would be taken back from whoever owns it next
                await asyncio.wait(list(self._loading.values()), timeout=seconds_max)
            await self._unload([topic for topic in self.loaded if topic.bundle == path], seconds_max)
        finally:
            await self._ownership.release(path)
        return True

    async def stop(self, seconds_max: float) -> None:
        """Stop serving in good order, as far as that is possible in time."""
        self._is_stopping = True
        await self._unload(list(self.loaded), seconds_max)
        self.abandon_all(ServiceNotReadyError("this broker stopped"))

    async def _unload(self, topics: list[Topic], seconds_max: float) -> None:
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
        """Stop serving everything at once (I13)."""
        for task in list(self._loading.values()):
            task.cancel()
        for topic in list(self._loaded.values()):
            topic.abandon(error)

    async def housekeep(self) -> None:
        """Start new ledgers where old ones are due, delete what retention gives free, close or delete idle topics."""
        idle: list[Topic] = []
        for number, topic in enumerate(self.loaded):
            if number % HOUSEKEEPING_TOPICS_MAX == 0:
                await asyncio.sleep(0)
            topic.ledger.roll_if_due()
            topic.compaction.start_if_due(topic.policies.compaction_threshold_bytes)
            for duty in (partial(expire_by_policy, topic), topic.trim, topic.housekeep):
                if topic.is_open:
                    await self._do(duty, topic)
            fate = self.idle.look(topic)
            if fate is Fate.UNLOAD:
                idle.append(topic)
            elif fate is Fate.DELETE and self.delete_idle is not None:
                await self._do(partial(self.delete_idle, topic), topic)
        for first in range(0, len(idle), UNLOADS_AT_ONCE_MAX):
            await asyncio.gather(*(self._unload_idle(topic) for topic in idle[first : first + UNLOADS_AT_ONCE_MAX]))

    async def _do(self, duty: Callable[[], Awaitable[object]], topic: Topic) -> None:
        """One of a topic's duties. Where it cannot be done now, the others are: that may be so for ever."""
        try:
            await duty()
        except ServiceNotReadyError as error:
            topic.abandon(error)
        except HeliographError as error:
            log.warning("%s: housekeeping: %s", topic.name, error)

    async def _unload_idle(self, topic: Topic) -> None:
        if is_in_use(topic):
            return
        topic.begin_close()
        try:
            await self.unload(topic.name)
        except HeliographError as error:
            topic.abandon(error)

    async def _load(self, name: TopicName, may_create: bool) -> Topic:
        with needs_session():
            return await self._open(name, may_create)

    async def _open(self, name: TopicName, may_create: bool) -> Topic:
        unloading = self._unloading.get(name)
        if unloading is not None:  # opening would fence what is still being finished
            await asyncio.wait([unloading])
        previous = self._loaded.get(name)
        if previous is not None:
            self._forget(previous)
        changes = self.policy_changes
        policies = await self._catalog.policies(name)
        bundle = bundle_path(name, policies)
        if not self._ownership.admits(bundle):
            raise ServiceNotReadyError(f"{name} is not served by this broker, look it up")
        created_with = await self._catalog.ensure(name, may_create=may_create)
        path = self._catalog.topic_path(name)
        applied = effective(policies, (await self._catalog.topic_policies(name)).overrides, created_with)
        try:
            topic = await self._make(name, path, bundle, applied)
        except BeingDeletedError:  # by somebody who did not come to the end, or is about to
            await delete_parts(path, self._store, self._ledgers)
            return await self._open(name, may_create)
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

    async def _make(self, name: TopicName, path: str, bundle: str, policies: Policies) -> Topic:
        store, ledgers = self._store, self._ledgers
        if not name.is_persistent:
            passing = PassingLedger(str(name), store, TopicRecord(str(name)), ledgers, policies)
            return NonPersistentTopic(name, path, bundle, passing, store, ledgers, policies, self.setting)
        ledger = await open_managed_ledger(str(name), path, store, ledgers, self._cache, policies)
        reader = TopicReader(ledger.chain, self._cache, ledgers)
        return Topic(name, path, bundle, ledger, reader, store, ledgers, policies, self.setting)

    def _forget(self, topic: Topic) -> None:
        if self._loaded.get(topic.name) is topic:
            del self._loaded[topic.name]

    def _session_lost(self) -> None:
        self.abandon_all(ServiceNotReadyError("this broker lost its session"))

    def _bundle_released(self, path: str) -> None:
        for topic in self.loaded:
            if topic.bundle == path:
                topic.abandon(ServiceNotReadyError("the bundle went to another broker"))


async def _close(topic: Topic, before: Callable[[], Awaitable[None]] | None) -> None:
    try:
        if before is not None:
            await before()
    except HeliographError as error:
        topic.abandon(error)
        raise
    await topic.close()
