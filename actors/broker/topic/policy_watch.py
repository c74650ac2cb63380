"""Applies policies at once: when the record of a namespace or the policies of a topic change, the loaded topics are
told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError, NamespaceNotFoundError
from heliograph.metadata import paths
from heliograph.metadata.model import TopicPolicies
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import MetadataStore, WatchEvent

RETRY_SECONDS = 1.0  # after policies could not be read
TOPICS_BETWEEN_TURNS = 200  # that are told in one turn of the loop

log = logging.getLogger(__name__)


class PolicyWatch:
    """Watches all policies in metadata on behalf of the topics of one broker."""

    def __init__(self, store: MetadataStore, catalog: Catalog, topics: Topics) -> None:
        self._catalog = catalog
        self._topics = topics
        self._dirty: set[str] = set()  # namespaces as "tenant/namespace" whose policies are to be read again
        self._wake = asyncio.Event()
        trees = (paths.NAMESPACES, paths.TOPIC_POLICIES, paths.NON_PERSISTENT_POLICIES)
        self._changes = Changes(store, trees, self._changed, self.apply_again)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to watch.

        Raises:
            ConnectionLossError, SessionExpiredError: the metadata store cannot be watched.
        """
        await self._changes.start()
        self._catalog.known.is_followed = True
        self._topics.on_policies_missed = lambda topic: self._mark(topic.name.namespace)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop to watch. Idempotent."""
        self._catalog.known.is_followed = False
        self._catalog.known.forget()
        self._changes.stop()
        await end_task(self._task)
        self._task = None

    def _changed(self, event: WatchEvent) -> None:
        self._catalog.known.changed(event)
        parts = event.path.split("/")  # "", family, tenant, namespace, perhaps a topic
        if len(parts) >= 4:
            self._mark("/".join(paths.last_part("/" + part) for part in parts[2:4]))

    def apply_again(self) -> None:
        """Re-apply policies to every loaded topic, because the cluster's defaults or a change may have been missed."""
        self._catalog.known.forget()
        for topic in self._topics.loaded:
            self._mark(topic.name.namespace)

    def _mark(self, namespace: str) -> None:
        self._topics.policy_changes += 1
        self._dirty.add(namespace)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            dirty, self._dirty = self._dirty, set()
            try:
                await self._tell(dirty)
            except HeliographError as error:
                log.warning("policies of %s cannot be read: %s", ", ".join(sorted(dirty)), error)
                await asyncio.sleep(RETRY_SECONDS)
                self._dirty |= dirty
                self._wake.set()

    async def _tell(self, namespaces: Iterable[str]) -> None:
        wanted = set(namespaces)
        by_namespace: defaultdict[str, list[BrokerTopic]] = defaultdict(list)
        for topic in self._topics.loaded:
            if topic.name.namespace in wanted:
                by_namespace[topic.name.namespace].append(topic)
        for topics in by_namespace.values():
            with contextlib.suppress(NamespaceNotFoundError):  # its topics are being deleted
                await self._tell_namespace(topics)

    async def _tell_namespace(self, topics: list[BrokerTopic]) -> None:
        policies = await self._catalog.policies(topics[0].name)
        own = await self._catalog.topics_with_policies(topics[0].name)
        for number, topic in enumerate(topics):
            if number % TOPICS_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
            found = TopicPolicies()
            if self._catalog.may_override(topic.name, own):
                found = await self._catalog.topic_policies(topic.name)
            applied = effective(policies, found.overrides, topic.created_with, found.subscriptions)
            if applied != topic.policies and topic.is_open:
                topic.apply_policies(applied)
