"""Policies as watches tell them, so that opening a topic asks the store for none.

A broker that takes over the topics of another opens thousands in one namespace. Its policies are read once and kept
while the watches of ``PolicyWatch`` are set and the store answers; each change drops or corrects them. They may be as
old as an event on its way: who changes bundles or creates nodes by them has the store check the version (I9), and a
topic that was opened with older policies gets the new ones when the event is there, as any open topic does.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from heliograph.actors.broker.namespaces.bundles import Bundle, bundle_path
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.base.completion import Shared
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import NamespacePolicies, TopicPolicies, Versioned
from heliograph.metadata.store import CHILDREN_PAGE_MAX, EventType, MetadataStore, WatchEvent, is_connected
from heliograph.protocol.topic_name import TopicName

V = TypeVar("V")

NAMESPACES_MAX = 256  # of which something is kept  # I15


class PolicySource(Protocol):
    """Reads policies from the store: the catalog."""

    async def namespace_of(self, topic: TopicName) -> Versioned[NamespacePolicies]:
        """Return the record of the topic's namespace."""

    async def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """Return a topic's own policies."""

    def policies_paths(self, topic: TopicName) -> Sequence[str]:
        """Return the paths at which a topic's own policies may be."""


class KnownPolicies:
    """The policies of namespaces that are known without a request. All calls on one event loop.

    Attributes:
        is_followed: whether ``changed`` is called at each change; otherwise nothing is kept.
    """

    def __init__(self, store: MetadataStore, source: PolicySource) -> None:
        self.is_followed = False
        self._store = store
        self._source = source
        self._reads: Shared[tuple[str, int], Any] = Shared()  # of paths, one after each change
        self._changes = 0  # a read during which it grows is not kept
        self._namespaces: OrderedDict[str, Versioned[NamespacePolicies]] = OrderedDict()  # by the paths of the records
        # By folder: the names of the nodes with topics' own policies; None: they are more than a page.
        self._own: OrderedDict[str, set[str] | None] = OrderedDict()

    async def namespace_of(self, topic: TopicName) -> Versioned[NamespacePolicies]:
        """Return the record of the topic's namespace.

        Raises:
            NamespaceNotFoundError.
            ServiceNotReadyError: this broker's session is over; try again.
        """
        path = paths.namespace(topic.tenant, topic.namespace_name)
        return await self._known(self._namespaces, path, partial(self._source.namespace_of, topic))

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """Return the bundle of a topic. Raises as ``namespace_of`` does."""
        found = await self.namespace_of(topic)
        path = paths.namespace(topic.tenant, topic.namespace_name)
        return Bundle(bundle_path(topic, found.record), path, found.version)

    async def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """Return a topic's own policies; most have none, which costs no request."""
        for path in self._source.policies_paths(topic):
            folder, _, name = path.rpartition("/")
            names = await self._known(self._own, folder, partial(self._names_in, folder))
            if names is None or name in names:
                return await self._source.topic_policies(topic)
        return TopicPolicies()

    def changed(self, event: WatchEvent) -> None:
        """Note a change of a namespace's record or of a topic's own policies."""
        self._changes += 1
        self._namespaces.pop(event.path, None)
        self._own.pop(event.path, None)
        folder, _, name = event.path.rpartition("/")
        names = self._own.get(folder)
        if names is not None and event.type is EventType.CREATED:
            names.add(name)
            if len(names) >= CHILDREN_PAGE_MAX:
                self._own[folder] = None
        elif names is not None and event.type is EventType.DELETED:
            names.discard(name)

    def forget(self) -> None:
        """Forget everything: changes may have been missed, or the defaults are others."""
        self._changes += 1
        self._namespaces.clear()
        self._own.clear()

    async def _known(self, kept: OrderedDict[str, V], path: str, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        if is_connected(self._store) and path in kept:
            kept.move_to_end(path)
            return kept[path]
        changes = self._changes
        found: V = await self._reads.run((path, changes), read)
        if self.is_followed and is_connected(self._store) and changes == self._changes:
            kept[path] = found
            if len(kept) > NAMESPACES_MAX:
                kept.popitem(last=False)
        return found

    async def _names_in(self, folder: str) -> set[str] | None:
        names: list[str] = []
        with contextlib.suppress(NoNodeError), needs_session():
            names = await self._store.children_from(folder)
        return None if len(names) >= CHILDREN_PAGE_MAX else set(names)
