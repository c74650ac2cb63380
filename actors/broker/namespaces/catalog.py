"""The catalog: the records of topics, partitioned topics and namespaces. Any broker may use it; no ownership is needed.

A topic is created by one write of its record, on any broker: the record is the topic. The owner of a topic deletes it
(``actors/broker/topic/deletion.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from heliograph.actors.broker.namespaces.bundles import Bundle, bundle_path
from heliograph.actors.broker.namespaces.known_policies import KnownPolicies
from heliograph.actors.broker.namespaces.policies import with_defaults
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.properties import check_new_name
from heliograph.actors.broker.records.topic_record import NEVER_TRIMMED, with_user_properties
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    BadRequestError,
    NamespaceNotFoundError,
    PolicyLimitError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError
from heliograph.metadata.model import (
    NamespacePolicies,
    PartitionedTopicRecord,
    Persistence,
    TopicPolicies,
    TopicRecord,
    Versioned,
)
from heliograph.metadata.parents import child_pages, create_parents
from heliograph.metadata.paths import quoted
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import Check, Create, MetadataStore, Operation, Set
from heliograph.protocol.topic_name import DOMAINS, TopicName

PERSISTENT, NON_PERSISTENT = DOMAINS
# The paths of records, by the domain of the topic.
_TOPICS = {PERSISTENT: paths.topic, NON_PERSISTENT: paths.non_persistent_topic}
_PARTITIONED = {PERSISTENT: paths.partitioned_topic, NON_PERSISTENT: paths.non_persistent_partitioned}
_POLICIES = {PERSISTENT: paths.topic_policies, NON_PERSISTENT: paths.non_persistent_policies}
OnCreated = Callable[[TopicName, int], None]  # a topic, and its number of partitions
CREATIONS_AT_ONCE_MAX = 64  # of partitions
CREATE_ROUNDS_MAX = 50  # of creating a topic while its namespace's policies, or its number of topics, change
CREATE_PAUSE_SECONDS_MAX = 0.05  # between rounds


class Catalog:
    """Reads and writes the records of topics and partitioned topics, and reads the records of namespaces.

    Args:
        defaults: the policies of namespaces that do not set them, by the names of the fields of ``NamespacePolicies``;
            they may be replaced.

    Attributes:
        known: the policies as watches tell them, for what happens to each topic.
    """

    def __init__(self, store: MetadataStore, defaults: Mapping[str, Any] | None = None) -> None:
        self._store = store
        self.defaults = defaults or {}
        self.known = KnownPolicies(store, self)
        self.namespaces_per_tenant_max = 0  # any number

    @staticmethod
    def topic_path(topic: TopicName) -> str:
        return _TOPICS[topic.domain](topic.tenant, topic.namespace_name, topic.local_name)

    @staticmethod
    def partitioned_path(topic: TopicName) -> str:
        return _PARTITIONED[topic.domain](topic.tenant, topic.namespace_name, topic.local_name)

    async def policies(self, topic: TopicName) -> NamespacePolicies:
        """Return the policies of the topic's namespace. Raises what ``namespace_of`` raises."""
        return (await self.namespace_of(topic)).record

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """Return the bundle of a topic. Raises what ``namespace_of`` raises."""
        found = await self.namespace_of(topic)
        path = paths.namespace(topic.tenant, topic.namespace_name)
        return Bundle(bundle_path(topic, found.record), path, found.version)

    async def namespace_of(self, topic: TopicName) -> Versioned[NamespacePolicies]:
        """Return the record of the topic's namespace.

        Raises:
            NamespaceNotFoundError.
            ServiceNotReadyError: this broker's session is over; try again.
        """
        path = paths.namespace(topic.tenant, topic.namespace_name)
        with contextlib.suppress(NoNodeError), needs_session():
            found = await read(self._store, path, NamespacePolicies)
            if not found.record.is_deleted:
                return replace(found, record=with_defaults(found.record, self.defaults))
        raise NamespaceNotFoundError(f"there is no namespace {topic.namespace}", field="namespace")

    async def namespace_and_partitions(self, topic: TopicName) -> tuple[Versioned[NamespacePolicies], int]:
        """Return the results of ``namespace_of`` and ``partitions``, in one round trip. Raises as these."""
        return await asyncio.gather(self.namespace_of(topic), self.partitions(topic))

    async def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """Return a topic's own policies. A partition has its partitioned topic's."""
        for path in self.policies_paths(topic):
            with contextlib.suppress(NoNodeError), needs_session():
                found = (await read(self._store, path, TopicPolicies)).record
                if path == self.policies_path(topic) or not await self._is_persistent_too(topic):
                    return found
        return TopicPolicies()

    async def topics_with_policies(self, topic: TopicName) -> set[str]:
        """Return the paths of all topics' own policies in the namespace of ``topic``, for ``may_override``."""
        found: set[str] = set()
        for family in _POLICIES.values():
            folder = family(topic.tenant, topic.namespace_name, "any").rpartition("/")[0]
            with contextlib.suppress(NoNodeError), needs_session():
                async for page in child_pages(self._store, folder):
                    found.update([f"{folder}/{name}" for name in page])
        return found

    def may_override(self, topic: TopicName, found: Collection[str]) -> bool:
        """Return whether a topic may have its own policies. ``found`` is what ``topics_with_policies`` returned."""
        return any(path in found for path in self.policies_paths(topic))

    async def forget_topic_policies(self, topic: TopicName) -> None:
        """Delete a topic's own policies, so that a later topic of the same name does not have them."""
        for path in self.policies_paths(topic):
            if path == self.policies_path(topic) or not await self._is_persistent_too(topic):
                with contextlib.suppress(NoNodeError), needs_session():
                    await self._store.delete(path)

    @staticmethod
    def policies_path(topic: TopicName) -> str:
        """Return the path of a topic's own policies. A partition has its partitioned topic's."""
        parent = TopicName.parse(topic.partitioned_name)
        return _POLICIES[topic.domain](parent.tenant, parent.namespace_name, parent.local_name)

    def policies_paths(self, topic: TopicName) -> list[str]:
        """Return the paths at which a topic's own policies may be, the newest first. Older versions kept those of
        non-persistent topics where those of persistent ones are."""
        parent = TopicName.parse(topic.partitioned_name)
        older = paths.topic_policies(parent.tenant, parent.namespace_name, parent.local_name)
        return list(dict.fromkeys((self.policies_path(topic), older)))

    async def _is_persistent_too(self, topic: TopicName) -> bool:
        """Return whether there is a persistent topic of the same name as a non-persistent one."""
        parent = TopicName.parse(topic.partitioned_name)
        other = replace(parent, domain=PERSISTENT)
        return await self.exists(other) or await self.partitions(other) > 0

    async def exists(self, topic: TopicName) -> bool:
        """Return whether there is a topic without partitions, or a partition, of that name."""
        with needs_session():
            return await self._store.exists(self.topic_path(topic)) is not None

    async def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a partitioned topic; 0 for any other name."""
        found = await self._versioned_partitioned(topic)
        return 0 if found is None else found.record.partitions

    async def partitioned(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """Return the record of a partitioned topic, None if there is none of that name."""
        found = await self._versioned_partitioned(topic)
        return None if found is None else found.record

    async def _versioned_partitioned(self, topic: TopicName) -> Versioned[PartitionedTopicRecord] | None:
        try:
            with needs_session():
                return await read(self._store, self.partitioned_path(topic), PartitionedTopicRecord)
        except NoNodeError:
            return None

    async def created_with(self, topic: TopicName) -> Persistence | None:
        """Return the numbers of copies that were asked for when a topic, partitioned or not, was created."""
        parent = await self.partitioned(topic)
        if parent is not None:
            return parent.persistence
        with contextlib.suppress(NoNodeError), needs_session():
            return (await read(self._store, self.topic_path(topic), TopicRecord)).record.persistence
        return None

    async def create(
        self,
        topic: TopicName,
        partitions: int = 0,
        persistence: Persistence | None = None,
        properties: Mapping[str, str] | None = None,
        known: tuple[Versioned[NamespacePolicies], int] | None = None,
    ) -> None:
        """Create a topic, or a partitioned topic with all its partitions; ``properties`` are the user's.

        A failed call may have created some of the partitions. Repeating the call creates the others.

        Args:
            known: what ``namespace_and_partitions`` just returned; None to ask it.

        Raises:
            TopicExistsError, NamespaceNotFoundError.
            ServiceNotReadyError: the topic is being deleted.
            PolicyLimitError: the namespace has as many topics as it may.
        """
        namespace, existing = known or await self.namespace_and_partitions(topic)
        policies = namespace.record
        if existing:
            with contextlib.suppress(TopicNotFoundError):  # it is gone meanwhile
                await self._whole(topic)
        if partitions == 0:
            if existing:
                raise TopicExistsError(f"{topic} exists and is partitioned", field="topic")
            await self._create_record(topic, persistence, properties, namespace)
            return
        if await self.exists(topic):
            raise TopicExistsError(f"{topic} exists and is not partitioned", field="topic")
        path = self.partitioned_path(topic)
        record = PartitionedTopicRecord(str(topic), partitions, wall_ms(), persistence, dict(properties or {}))
        if existing:
            raise TopicExistsError(f"{topic} exists", field="topic")
        await self._check_room(topic, policies, partitions)
        await self._create_partitions(topic.partitions(partitions), persistence, policies)
        try:  # last, so that a partitioned topic that is visible has all its partitions
            await self._create_node(topic, path, codec.encode(record))
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None

    async def create_missing_partitions(self, topic: TopicName, first: int = 0, upto: int = 0) -> int:
        """Create the missing partitions of a partitioned topic. Return how many were created.

        Args:
            first: the first partition to look at.
            upto: one past the last; 0 for as many as the topic has. ``set_partitions`` makes more of them visible.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
        """
        whole = await self._whole(topic)
        names = topic.partitions(upto or whole.record.partitions)[first:]
        missing = [name for name in names if not await self.exists(name)]
        await self._check_room(topic, await self.policies(topic), len(missing))
        for name in missing:
            with contextlib.suppress(TopicExistsError):
                await self._create_record(name, whole.record.persistence, whole=whole)
                whole = replace(whole, version=whole.version + 1)  # each creation writes it
        return len(missing)

    async def set_partitions(self, topic: TopicName, partitions: int) -> None:
        """Set the number of partitions of a partitioned topic. The partitions must exist.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
            BadRequestError: it has more.
        """

        def grow(record: PartitionedTopicRecord) -> PartitionedTopicRecord | None:
            if record.is_deleting:
                raise _is_being_deleted(topic)
            if record.partitions > partitions:
                raise BadRequestError(
                    f"{topic} has {record.partitions} partitions and cannot shrink",
                    field="partitions",
                    limit=f"{record.partitions} or more",
                )
            return None if record.partitions == partitions else replace(record, partitions=partitions)

        path = self.partitioned_path(topic)
        try:
            with needs_session():
                await update(self._store, path, PartitionedTopicRecord, grow)
        except NoNodeError:
            raise TopicNotFoundError(f"there is no partitioned topic {topic}", field="topic") from None

    async def auto_partitions(self, topic: TopicName, *, may_create: bool, on_created: OnCreated | None = None) -> int:
        """Return the number of partitions of a topic. Create it by its namespace's policy if allowed.

        Args:
            on_created: called once the topic was created.

        Raises:
            TopicNotFoundError: the topic does not exist and may not be created.
            ServiceNotReadyError: it is being deleted.
            NamespaceNotFoundError.
        """
        # Asked together, which costs one round trip.
        policies, parent, exists = await asyncio.gather(
            self.policies(topic), self.partitioned(topic), self.exists(topic)
        )
        if parent is not None and parent.is_deleting:
            raise _is_being_deleted(topic)
        if parent is not None or (topic.partition < 0 and exists):
            return 0 if parent is None else parent.partitions
        wanted = policies.auto_create_partitions
        if may_create and policies.auto_create_topics and wanted and topic.partition < 0:
            with contextlib.suppress(TopicExistsError):
                await self.create(topic, wanted)
                if on_created is not None:
                    on_created(topic, wanted)
            return await self.partitions(topic)
        if not may_create:
            await self.ensure(topic, may_create=False)
        return 0

    async def ensure(
        self, topic: TopicName, *, may_create: bool = True, on_created: OnCreated | None = None
    ) -> tuple[Persistence | None, Versioned[TopicRecord] | None]:
        """Make sure that a topic exists; create it where policies allow.

        Args:
            on_created: called if the topic was created, and is no partition of one that exists.

        Returns:
            the numbers of copies that it was created with, None for those of its namespace; and its record, None if it
            was just created.

        Raises:
            TopicNotFoundError: the topic does not exist and may not be created, or is a partition of no topic.
            ServiceNotReadyError: its partitioned topic is being deleted.
            UnsupportedError: the topic is partitioned; only its partitions are served.
            NamespaceNotFoundError.
        """
        with contextlib.suppress(NoNodeError), needs_session():
            existing = await read(self._store, self.topic_path(topic), TopicRecord)
            return existing.record.persistence, existing
        whole = topic if topic.partition < 0 else TopicName.parse(topic.partitioned_name)
        namespace, found = await asyncio.gather(self.namespace_of(topic), self._versioned_partitioned(whole))
        parent = None if found is None else found.record
        persistence = None
        if topic.partition >= 0:
            if parent is None:
                raise TopicNotFoundError(f"there is no partitioned topic {whole}", field="topic")
            if parent.is_deleting:
                raise _is_being_deleted(whole)
            if topic.partition >= parent.partitions:
                raise TopicNotFoundError(f"{parent.name} has {parent.partitions} partitions", field="topic")
            may_create, persistence = True, parent.persistence
        elif parent is not None and parent.partitions:
            raise UnsupportedError(f"{topic} is partitioned; use its partitions", field="topic")
        if not (may_create and namespace.record.auto_create_topics):
            raise TopicNotFoundError(f"there is no topic {topic}", field="topic")
        with contextlib.suppress(TopicExistsError):
            await self._create_record(topic, persistence, namespace=namespace, whole=found)
            if on_created is not None and parent is None:
                on_created(topic, 0)
        return persistence, None

    async def topic_pages(
        self, tenant: str, namespace: str, domain: str = PERSISTENT, prefix: str = ""
    ) -> AsyncIterator[list[TopicName]]:
        """Return every topic and every partition of a namespace whose local name begins with ``prefix``, in pages.

        Raises:
            NamespaceNotFoundError.
        """
        probe = TopicName(domain, tenant, namespace, "any", -1)
        await self.policies(probe)
        async for page in self.sibling_pages(self.topic_path, probe, quoted(prefix), quoted(prefix)):
            yield page

    async def all_partitioned(self, tenant: str, namespace: str) -> AsyncIterator[TopicName]:
        for domain in DOMAINS:
            async for topic in self.siblings_from(
                self.partitioned_path, TopicName(domain, tenant, namespace, "any", -1), ""
            ):
                yield topic

    async def left_in(self, tenant: str, namespace: str) -> AsyncIterator[list[TopicName]]:
        """Return the topics and partitioned topics of a namespace, which may be marked deleted, in pages."""
        for domain in DOMAINS:
            for family in (self.topic_path, self.partitioned_path):
                async for page in self.sibling_pages(family, TopicName(domain, tenant, namespace, "any", -1), ""):
                    yield page

    async def partitions_left(self, topic: TopicName) -> list[TopicName]:
        """Return the partitions that there are of a topic, of whatever number."""
        start = quoted(f"{topic.local_name}-partition-")
        found = self.siblings_from(self.topic_path, topic, start, start)
        return [name async for name in found if name.partition >= 0 and name.partitioned_name == str(topic)]

    async def mark_deleting(self, topic: TopicName, *, if_empty: bool = False) -> bool:
        """Mark a partitioned topic as being deleted, so that none of its partitions is created any more.

        Args:
            if_empty: mark it only if it has no partition.

        Returns:
            whether it is marked; False also if there is no such topic.
        """
        while (found := await self._versioned_partitioned(topic)) is not None:
            if if_empty and (await self._has_partition(found.record) or await self.partitions_left(topic)):
                return False
            if found.record.is_deleting:
                return True
            marked = codec.encode(replace(found.record, is_deleting=True))
            with contextlib.suppress(BadVersionError, NoNodeError), needs_session():  # a creation also writes it
                await self._store.set(self.partitioned_path(topic), marked, found.version)
        return False

    async def forget_partitioned(self, topic: TopicName) -> None:
        """Delete the marked record of a partitioned topic of which no partition is left; one made since then stays."""
        path = self.partitioned_path(topic)
        with contextlib.suppress(NoNodeError, BadVersionError), needs_session():
            found = await read(self._store, path, PartitionedTopicRecord)
            if found.record.is_deleting:
                await self._store.delete(path, found.version)

    async def _has_partition(self, record: PartitionedTopicRecord) -> bool:
        """Return whether one of the partitions of a topic exists. Nothing of other topics is read, as a listing does.

        The last partition is looked at first, because unused partitions are deleted in their order.
        """
        for name in reversed(TopicName.parse(record.name).partitions(record.partitions)):
            if await self.exists(name):
                return True
        return False

    async def siblings_from(
        self, path_of: Callable[[TopicName], str], topic: TopicName, start: str, beginning: str = ""
    ) -> AsyncIterator[TopicName]:
        """Return the topics of ``sibling_pages`` one by one."""
        async for page in self.sibling_pages(path_of, topic, start, beginning):
            for name in page:
                yield name

    async def sibling_pages(
        self, path_of: Callable[[TopicName], str], topic: TopicName, start: str, beginning: str = ""
    ) -> AsyncIterator[list[TopicName]]:
        """Return the topics whose nodes are siblings of the node of ``topic``, from a node's name on, in their order.

        A page has as many as the store's, or fewer; the next page is read when the caller takes it.

        Args:
            path_of: ``topic_path`` or ``partitioned_path``.
            start: the name of the first node, as its path has it.
            beginning: the beginning of the names of all of them, in the same form.
        """
        before = f"{topic.domain}://{topic.namespace}"
        with contextlib.suppress(NoNodeError), needs_session():
            async for page in child_pages(self._store, path_of(topic).rpartition("/")[0], start):
                names = page if not beginning else [name for name in page if name.startswith(beginning)]
                if names:
                    yield [TopicName.parse(f"{before}/{paths.last_part('/' + name)}") for name in names]
                if len(names) < len(page):
                    return

    async def _whole(self, topic: TopicName) -> Versioned[PartitionedTopicRecord]:
        """Return the record of a partitioned topic of which partitions may be created.

        Raises:
            TopicNotFoundError.
            ServiceNotReadyError: it is being deleted.
        """
        found = await self._versioned_partitioned(topic)
        if found is None:
            raise TopicNotFoundError(f"there is no partitioned topic {topic}", field="topic")
        if found.record.is_deleting:
            raise _is_being_deleted(topic)
        return found

    async def _create_partitions(
        self, names: Iterable[TopicName], persistence: Persistence | None, policies: NamespacePolicies
    ) -> None:
        limit = asyncio.Semaphore(1 if policies.max_topics else CREATIONS_AT_ONCE_MAX)  # counted ones conflict

        async def create_partition(name: TopicName) -> None:
            async with limit:
                with contextlib.suppress(TopicExistsError):
                    await self._create_record(name, persistence)

        await asyncio.gather(*(create_partition(name) for name in names))

    async def _check_room(self, topic: TopicName, policies: NamespacePolicies, count: int) -> None:
        """Check that a namespace may have some more topics. ``_counted`` makes sure of it when one is created.

        Raises:
            PolicyLimitError: it may not.
        """
        limit = policies.max_topics
        if not limit or not count:
            return
        existing = 0
        for domain in DOMAINS:
            with needs_session():
                found = await self._store.exists(self.topic_path(replace(topic, domain=domain)).rpartition("/")[0])
            existing += 0 if found is None else found.num_children
        if existing + count > limit and not await self.exists(topic):
            raise PolicyLimitError(
                f"{topic.namespace} may have {limit} topics, and has {existing}", field="max_topics",
                limit=f"{limit} topics",
            )  # fmt: skip

    async def _create_record(
        self,
        topic: TopicName,
        persistence: Persistence | None,
        properties: Mapping[str, str] | None = None,
        namespace: Versioned[NamespacePolicies] | None = None,
        whole: Versioned[PartitionedTopicRecord] | None = None,
    ) -> None:
        own = {NEVER_TRIMMED: "true"} if topic.is_persistent else {}
        record = TopicRecord(str(topic), created_ms=wall_ms(), persistence=persistence, properties=own)
        if properties:
            record = with_user_properties(record, properties)
        try:
            await self._create_node(
                topic, self.topic_path(topic), codec.encode(record), namespace, whole, is_counted=True
            )
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None

    async def _counted(self, topic: TopicName, policies: NamespacePolicies) -> list[Operation]:
        """Return the operations that make a creation fail if another topic was created in the namespace meanwhile.

        Raises:
            PolicyLimitError: there is no room for it.
        """
        if not policies.max_topics:
            return []
        folder = self.topic_path(replace(topic, domain=PERSISTENT)).rpartition("/")[0]
        with needs_session():
            found = await self._store.exists(folder)
            if found is None:
                await create_parents(self._store, f"{folder}/any")
                found = await self._store.exists(folder)
        await self._check_room(topic, policies, 1)
        return [Set(folder, b"", 0 if found is None else found.version)]  # its version counts the creations

    async def _create_node(
        self,
        topic: TopicName,
        path: str,
        value: bytes,
        namespace: Versioned[NamespacePolicies] | None = None,
        whole: Versioned[PartitionedTopicRecord] | None = None,
        *,
        is_counted: bool = False,
    ) -> None:
        """Create a node only if its namespace is not marked deleted at the same moment, and has room for it.

        Args:
            namespace: as just read; None to read it.
            whole: the topic, as just read, of which the node is a partition. It is written with it, so that neither a
                mark nor a deletion of a topic without partitions can miss the partition.
        """
        if whole is None:  # else it is a partition of a topic that exists, whatever its name
            check_new_name(topic.local_name.removesuffix(f"-partition-{topic.partition}"), "topic")
        for attempt in range(CREATE_ROUNDS_MAX):
            if attempt:
                await asyncio.sleep(random.uniform(0, CREATE_PAUSE_SECONDS_MAX))
            if namespace is None or attempt:
                namespace = await self.namespace_of(topic)
            if namespace.record.is_closing:
                raise NamespaceNotFoundError(f"{topic.namespace} is being deleted", field="namespace")
            check = Check(paths.namespace(topic.tenant, topic.namespace_name), namespace.version)
            counted = await self._counted(topic, namespace.record) if is_counted else []
            if whole is not None:
                parent = TopicName.parse(topic.partitioned_name)
                whole = await self._whole(parent) if attempt else whole
                counted = [*counted, Set(self.partitioned_path(parent), codec.encode(whole.record), whole.version)]
            try:
                with needs_session():
                    await self._store.multi([check, *counted, Create(path, value)])  # I9
                return
            except NoNodeError:
                with needs_session():
                    await create_parents(self._store, path)
            except BadVersionError:
                continue
        raise ServiceNotReadyError(f"the policies or topics of {topic.namespace} keep changing, try again")


def _is_being_deleted(topic: TopicName) -> ServiceNotReadyError:
    """Return the error that has a client try again. It finds no topic when the deletion is done, and may make one."""
    return ServiceNotReadyError(f"{topic} is being deleted, try again")
