"""The lists of persistent topics that clients follow, one for each namespace.

The records of topics in metadata are watched while a client follows their namespace. Changes that come close together
are told once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.base.errors import HeliographError, NamespaceNotFoundError
from heliograph.metadata import paths
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import EventType, MetadataStore, WatchEvent

GATHER_SECONDS = 0.1  # from a change to its announcement, in which further changes join it
RETRY_SECONDS = 1.0  # after the topics could not be read

log = logging.getLogger(__name__)

Follower = Callable[[list[str]], None]


class TopicLists:
    """The followed namespaces of one broker. All calls on one event loop."""

    def __init__(self, store: MetadataStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._followed: dict[str, _FollowedNamespace] = {}

    async def names(self, namespace: str) -> list[str]:
        """Return every persistent topic and partition of ``tenant/namespace``, sorted; none if there is no such
        namespace."""
        tenant, _, local = namespace.partition("/")
        try:
            return sorted(str(name) for name in await self._catalog.topics(tenant, local))
        except NamespaceNotFoundError:
            return []

    async def follow(self, namespace: str, follower: Follower) -> None:
        """Call ``follower`` with all names after each change, until ``leave``.

        Raises:
            ConnectionLossError, SessionExpiredError: the metadata store cannot be watched.
        """
        followed = self._followed.get(namespace)
        if followed is None:
            followed = self._followed[namespace] = _FollowedNamespace(namespace, self)
        followed.followers.append(follower)
        try:
            await followed.watch(self._store)
        except BaseException:
            self.leave(namespace, follower)
            raise

    def leave(self, namespace: str, follower: Follower) -> None:
        """Call ``follower`` no longer. Idempotent."""
        followed = self._followed.get(namespace)
        if followed is None or follower not in followed.followers:
            return
        followed.followers.remove(follower)
        if not followed.followers:
            del self._followed[namespace]
            followed.stop()

    def stop(self) -> None:
        """Call no follower any more."""
        for followed in self._followed.values():
            followed.stop()
        self._followed.clear()


class _FollowedNamespace:
    """One namespace that clients follow."""

    def __init__(self, namespace: str, lists: TopicLists) -> None:
        self.followers: list[Follower] = []
        self._namespace = namespace
        self._lists = lists
        self._changes: Changes | None = None
        self._watching = asyncio.Lock()
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    async def watch(self, store: MetadataStore) -> None:
        """Set the watch unless it is set."""
        tenant, _, local = self._namespace.partition("/")
        folder = paths.topic(tenant, local, "any").rpartition("/")[0]
        async with self._watching:
            if self._changes is None:
                changes = Changes(store, (folder,), self._changed, self._gather)
                await changes.start()
                self._changes = changes
            if self._is_stopped:
                self._changes.stop()

    def stop(self) -> None:
        """Cancel the watch and what is under way."""
        self._is_stopped = True
        if self._changes is not None:
            self._changes.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()

    def _changed(self, event: WatchEvent) -> None:
        is_topic = event.path.count("/") == paths.TOPICS.count("/") + 3  # and no cursor below it
        if is_topic and event.type in (EventType.CREATED, EventType.DELETED):
            self._gather()

    def _gather(self, seconds: float = GATHER_SECONDS) -> None:
        if self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start_to_tell)

    def _start_to_tell(self) -> None:
        if self._telling is None or self._telling.done():
            self._timer = None
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        else:  # the last announcement is still under way
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._start_to_tell)

    async def _tell(self) -> None:
        try:
            names = await self._lists.names(self._namespace)
        except HeliographError as error:
            log.warning("the topics of %s cannot be read: %s", self._namespace, error)
            self._gather(RETRY_SECONDS)
            return
        for follower in list(self.followers):
            follower(names)
