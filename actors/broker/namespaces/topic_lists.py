"""The lists of topics that clients ask for by a pattern, and the changes of followed lists.

A list is read in pages, of names that can match only. The records of persistent topics in metadata are watched while a
client follows their namespace; a follower is told which topics came and went, and nothing is listed again unless
changes were missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from heliograph.actors.broker.limits.answers import LISTS_AT_ONCE_MAX, NAMES_BYTES_MAX, WATCHED_BYTES_MAX
from heliograph.actors.broker.namespaces.catalog import PERSISTENT, Catalog
from heliograph.base.errors import NamespaceNotFoundError, UnsupportedError
from heliograph.metadata import paths
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import EventType, MetadataStore, WatchEvent
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import TopicsPattern

GATHER_SECONDS = 0.1  # from a change to its announcement, in which further changes join it
CHANGES_MAX = 10_000  # topics of one announcement; with more, followers list the namespace again  # I15
NAMES_BETWEEN_TURNS = 50  # that are matched in one turn of the loop


class Follower(Protocol):
    """An object that gets the changes of a namespace."""

    def changed(self, changes: Mapping[str, bool]) -> None:
        """Note whether each of some topics exists now, by its full name. Later calls are newer."""

    def missed(self) -> None:
        """Read the list again: some changes may have been missed. Later changes are reported."""


class TopicLists:
    """The lists and the followed namespaces of one broker. All calls on one event loop."""

    def __init__(self, store: MetadataStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._turns = asyncio.Semaphore(LISTS_AT_ONCE_MAX)  # I15
        self._watched_bytes = 0  # of the names that followers know # I15
        self._followed: dict[str, _FollowedNamespace] = {}

    async def matching(
        self, namespace: str, pattern: TopicsPattern | None, domains: Sequence[str] = (PERSISTENT,)
    ) -> list[str]:
        """Return every topic and partition of ``tenant/namespace`` that a pattern matches, sorted.

        There is none if there is no such namespace. Of other names only those are read that begin as the pattern does,
        and none is kept. Other work of the event loop goes on in between.

        Args:
            pattern: None: all match.

        Raises:
            UnsupportedError: they do not fit into one command of the protocol.
        """
        tenant, _, local = namespace.partition("/")
        prefix = "" if pattern is None else _local_prefix(pattern, namespace)
        found: list[str] = []
        if prefix is None:
            return found
        size = 0
        async with self._turns:
            with contextlib.suppress(NamespaceNotFoundError):
                for domain in domains:
                    async for page in self._catalog.topic_pages(tenant, local, domain, prefix):
                        for number, name in enumerate(page):
                            if number % NAMES_BETWEEN_TURNS == 0:
                                await asyncio.sleep(0)
                            if pattern is None or matches(pattern, name):
                                found.append(str(name))
                                size += bytes_of(found[-1])
                                check_size(size, namespace)
        found.sort()
        return found

    async def follow(self, namespace: str, follower: Follower) -> None:
        """Tell ``follower`` of each change from now on, until ``leave``.

        Raises:
            ConnectionLossError, SessionExpiredError: the metadata store cannot be watched.
        """
        followed = self._followed.get(namespace)
        if followed is None:
            followed = self._followed[namespace] = _FollowedNamespace(namespace)
        followed.followers.append(follower)
        try:
            await followed.watch(self._store)
        except BaseException:
            self.leave(namespace, follower)
            raise

    def leave(self, namespace: str, follower: Follower) -> None:
        """Tell ``follower`` nothing any more. Idempotent."""
        followed = self._followed.get(namespace)
        if followed is None or follower not in followed.followers:
            return
        followed.followers.remove(follower)
        if not followed.followers:
            del self._followed[namespace]
            followed.stop()

    def account(self, before: int, now: int, namespace: str) -> None:
        """Count the bytes of names that a follower knew before, and knows now, also when it raises.

        Raises:
            UnsupportedError: they are too many.
        """
        self._watched_bytes += now - before
        if now > before:
            check_size(now, namespace)
            if self._watched_bytes > WATCHED_BYTES_MAX:
                raise UnsupportedError(
                    "watchers of this broker know too many topics", limit=f"{WATCHED_BYTES_MAX} bytes of names"
                )

    def stop(self) -> None:
        """Tell no follower anything any more."""
        for followed in self._followed.values():
            followed.stop()
        self._followed.clear()


class _FollowedNamespace:
    """One namespace that clients follow."""

    def __init__(self, namespace: str) -> None:
        self.followers: list[Follower] = []
        self._namespace = namespace
        self._changes: Changes | None = None
        self._watching = asyncio.Lock()
        self._is_stopped = False
        self._gathered: dict[str, bool] = {}  # the nodes that changed, and whether they exist # <= CHANGES_MAX
        self._is_behind = False  # changes were missed, or were too many
        self._timer: asyncio.TimerHandle | None = None

    async def watch(self, store: MetadataStore) -> None:
        """Set the watch unless it is set."""
        tenant, _, local = self._namespace.partition("/")
        folder = paths.topic(tenant, local, "any").rpartition("/")[0]
        async with self._watching:
            if self._changes is None:
                changes = Changes(store, (folder,), self._changed, self._missed)
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

    def _changed(self, event: WatchEvent) -> None:
        is_topic = event.path.count("/") == paths.TOPICS.count("/") + 3  # and no cursor below it
        if is_topic and event.type in (EventType.CREATED, EventType.DELETED):
            self._gathered[event.path] = event.type is EventType.CREATED
            if len(self._gathered) > CHANGES_MAX:
                self._missed()
            self._gather()

    def _missed(self) -> None:
        self._gathered.clear()
        self._is_behind = True
        self._gather()

    def _gather(self) -> None:
        if self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        gathered, self._gathered = self._gathered, {}
        is_behind, self._is_behind = self._is_behind, False
        before = f"{PERSISTENT}://{self._namespace}/"
        changes = {before + paths.last_part(path): exists for path, exists in gathered.items()}
        for follower in list(self.followers):
            if is_behind:
                follower.missed()
            else:
                follower.changed(changes)


def matches(pattern: TopicsPattern, name: TopicName) -> bool:
    """Return whether a pattern matches a topic: its name without the domain and without the suffix of a partition."""
    return pattern.matches(name.partitioned_name.partition("://")[2])


def bytes_of(name: str) -> int:
    """Return the most bytes that a name takes in a command, with its length."""
    return len(name) * (1 if name.isascii() else 4) + 4


def check_size(size: int, namespace: str) -> None:
    """Raise UnsupportedError if so many bytes of names are too many for one command."""
    if size > NAMES_BYTES_MAX:  # I15
        raise UnsupportedError(
            f"too many topics of {namespace} match", field="topicsPattern", limit=f"{NAMES_BYTES_MAX} bytes of names"
        )


def _local_prefix(pattern: TopicsPattern, namespace: str) -> str | None:
    """Return the common beginning of local names that a pattern can match; None if it matches none of the namespace."""
    before, prefix = f"{namespace}/", pattern.prefix
    if not prefix.startswith(before):
        return "" if before.startswith(prefix) else None
    local = prefix.removeprefix(before)
    return local if local.strip(".") else ""  # nodes of "." and ".." have other names
