"""Topics, partitioned topics and namespaces as metadata knows them. Any broker may ask; nothing here needs ownership.

Creating a topic is one write of its record and needs no owner either: the record is the topic. Deleting a loaded topic
is its owner's work (``topic_deletion.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from actors.broker.bundles import Bundle, bundle_path
from actors.broker.session_guard import needs_session
from actors.broker.topic_record import WHOLE, now_ms
from heliograph.errors import (
    BadRequestError,
    NamespaceNotFoundError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.protocol.topic_name import DOMAINS, TopicName
from metadata import codec, paths
from metadata.errors import BadVersionError, NodeExistsError, NoNodeError
from metadata.model import (
    NamespacePolicies,
    PartitionedTopicRecord,
    Persistence,
    TopicPolicies,
    TopicRecord,
    Versioned,
)
from metadata.parents import create_parents
from metadata.store import Check, Create, MetadataStore
from metadata.update_loop import read, update

PERSISTENT, NON_PERSISTENT = DOMAINS
PARTITIONS_MAX = 10_000  # of one topic
CREATIONS_AT_ONCE_MAX = 64  # records of partitions being written
CREATE_ROUNDS_MAX = 10  # of creating a topic while its namespace's policies change


class Catalog:
    """Reads and writes the records that say which topics there are."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @staticmethod
    def topic_path(topic: TopicName) -> str:
        """The node of a topic's record."""
        family = paths.topic if topic.is_persistent else paths.non_persistent_topic
        return family(topic.tenant, topic.namespace_name, topic.local_name)

    @staticmethod
    def partitioned_path(topic: TopicName) -> str:
        """The node of a partitioned topic's record."""
        family = paths.partitioned_topic if topic.is_persistent else paths.non_persistent_partitioned
        return family(topic.tenant, topic.namespace_name, topic.local_name)

    async def policies(self, topic: TopicName) -> NamespacePolicies:
        """What holds in the topic's namespace; raises as ``namespace_of``."""
        return (await self.namespace_of(topic)).record

    async def bundle_of(self, topic: TopicName) -> Bundle:
        """The bundle that the topic is in; raises as ``namespace_of``."""
        found = await self.namespace_of(topic)
        path = paths.namespace(topic.tenant, topic.namespace_name)
        return Bundle(bundle_path(topic, found.record), path, found.version)

    async def namespace_of(self, topic: TopicName) -> Versioned[NamespacePolicies]:
        """The record of the topic's namespace.

        Raises:
            NamespaceNotFoundError.
            ServiceNotReadyError: this broker's session is over; another broker, or its next session, can tell.
        """
        path = paths.namespace(topic.tenant, topic.namespace_name)
        with contextlib.suppress(NoNodeError), needs_session():
            found = await read(self._store, path, NamespacePolicies)
            if not found.record.is_deleted:
                return found
        raise NamespaceNotFoundError(f"there is no namespace {topic.namespace}", field="namespace")

    async def topic_policies(self, topic: TopicName) -> TopicPolicies:
        """What a topic, a partition's partitioned topic, overrides of its namespace's policies."""
        for path in self._policies_places(topic):
            with contextlib.suppress(NoNodeError), needs_session():
                found = (await read(self._store, path, TopicPolicies)).record
                if path == self.policies_path(topic) or not await self._is_persistent_too(topic):
                    return found
        return TopicPolicies()

    async def topics_with_policies(self, topic: TopicName) -> set[str]:
        """Nodes of policies of the topics' own in the namespace of ``topic``, for ``may_override``."""
        found: set[str] = set()
        for family in (paths.topic_policies, paths.non_persistent_policies):
            folder = family(topic.tenant, topic.namespace_name, "any").rpartition("/")[0]
            with contextlib.suppress(NoNodeError), needs_session():
                found |= {f"{folder}/{name}" for name in await self._store.children(folder)}
        return found

    def may_override(self, topic: TopicName, found: Collection[str]) -> bool:
        """Whether a topic may have policies of its own, when ``topics_with_policies`` gave these."""
        return any(path in found for path in self._policies_places(topic))

    async def forget_topic_policies(self, topic: TopicName) -> None:
        """A topic that goes overrides nothing any more, should there be another of its name."""
        for path in self._policies_places(topic):
            if path == self.policies_path(topic) or not await self._is_persistent_too(topic):
                with contextlib.suppress(NoNodeError), needs_session():
                    await self._store.delete(path)

    @staticmethod
    def policies_path(topic: TopicName) -> str:
        """The node of a topic's own policies; a partition's are those of the partitioned topic."""
        family = paths.topic_policies if topic.is_persistent else paths.non_persistent_policies
        whole = TopicName.parse(topic.partitioned_name)
        return family(whole.tenant, whole.namespace_name, whole.local_name)

    def _policies_places(self, topic: TopicName) -> list[str]:
        """Where a topic's own policies may be, the newest first: older versions kept those of topics that store
        nothing where those of persistent ones are."""
        whole = TopicName.parse(topic.partitioned_name)
        older = paths.topic_policies(whole.tenant, whole.namespace_name, whole.local_name)
        return list(dict.fromkeys((self.policies_path(topic), older)))

    async def _is_persistent_too(self, topic: TopicName) -> bool:
        """Whether there is a persistent topic of the name of one that stores nothing."""
        whole = TopicName.parse(topic.partitioned_name)
        other = replace(whole, domain=PERSISTENT)
        return await self.exists(other) or await self.partitions(other) > 0

    async def exists(self, topic: TopicName) -> bool:
        """Whether there is an (unpartitioned) topic or partition of that name."""
        with needs_session():
            return await self._store.exists(self.topic_path(topic)) is not None

    async def partitions(self, topic: TopicName) -> int:
        """How many partitions a partitioned topic has; 0 for any other name."""
        record = await self.partitioned(topic)
        return 0 if record is None else record.partitions

    async def partitioned(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """The record of a partitioned topic, None when there is none of that name."""
        path = self.partitioned_path(topic)
        try:
            with needs_session():
                return (await read(self._store, path, PartitionedTopicRecord)).record
        except NoNodeError:
            return None

    async def created_with(self, topic: TopicName) -> Persistence | None:
        """The copies that were asked for when a topic, partitioned or not, was created."""
        parent = await self.partitioned(topic)
        if parent is not None:
            return parent.persistence
        with contextlib.suppress(NoNodeError), needs_session():
            return (await read(self._store, self.topic_path(topic), TopicRecord)).record.persistence
        return None

    async def create(self, topic: TopicName, partitions: int = 0, persistence: Persistence | None = None) -> None:
        """Create a topic; a partitioned one with all its partitions.

        A failed call may have created some of the partitions; the same call goes on where it stopped.

        Raises:
            TopicExistsError, NamespaceNotFoundError.
        """
        await self.policies(topic)
        if partitions == 0:
            if await self.partitions(topic):
                raise TopicExistsError(f"{topic} exists and is partitioned", field="topic")
            await self._create_record(topic, persistence)
            return
        if await self.exists(topic):
            raise TopicExistsError(f"{topic} exists and is not partitioned", field="topic")
        path = self.partitioned_path(topic)
        record = PartitionedTopicRecord(str(topic), partitions, now_ms(), persistence)
        if await self._store.exists(path) is not None:
            raise TopicExistsError(f"{topic} exists", field="topic")
        await self._create_partitions(topic.partitions(partitions), persistence)
        try:  # last, so that whoever sees the partitioned topic sees all of it
            await self._create_node(topic, path, codec.encode(record))
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None

    async def create_missing_partitions(self, topic: TopicName, first: int = 0, upto: int = 0) -> int:
        """Create the partitions that a partitioned topic should have and has not; returns how many.

        Args:
            first: the first partition to look at.
            upto: one past the last; 0 for as many as the topic has. More are what ``set_partitions`` makes public.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
        """
        record = await self._partitioned_record(topic)
        names = topic.partitions(upto or record.partitions)[first:]
        missing = [name for name in names if not await self.exists(name)]
        await self._create_partitions(missing, record.persistence)
        return len(missing)

    async def set_partitions(self, topic: TopicName, partitions: int) -> None:
        """Have a partitioned topic say that it has so many partitions, which must exist by now.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
            BadRequestError: it has more already.
        """

        def grow(record: PartitionedTopicRecord) -> PartitionedTopicRecord | None:
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

    async def auto_partitions(self, topic: TopicName, *, may_create: bool) -> int:
        """How many partitions a topic has; one that may be created by being used gets those of its namespace's policy.

        Raises:
            TopicNotFoundError: there is none, and it may not be created.
            NamespaceNotFoundError.
        """
        policies = await self.policies(topic)
        partitions = await self.partitions(topic)
        if partitions or (topic.partition < 0 and await self.exists(topic)):
            return partitions
        wanted = policies.auto_create_partitions
        if may_create and policies.auto_create_topics and wanted and topic.partition < 0:
            with contextlib.suppress(TopicExistsError):
                await self.create(topic, wanted)
            return await self.partitions(topic)
        if not may_create:
            await self.ensure(topic, may_create=False)
        return 0

    async def ensure(self, topic: TopicName, *, may_create: bool = True) -> Persistence | None:
        """Make sure that there is a topic to serve under this name, creating it where policies allow.

        Returns:
            the numbers of copies that it was created with, None for those of its namespace.

        Raises:
            TopicNotFoundError: there is none, and it may not be created.
            UnsupportedError: the name is that of a partitioned topic, which is served partition by partition.
            NamespaceNotFoundError.
        """
        with contextlib.suppress(NoNodeError), needs_session():
            return (await read(self._store, self.topic_path(topic), TopicRecord)).record.persistence
        policies = await self.policies(topic)
        persistence = None
        if topic.partition >= 0:
            parent = await self.partitioned(TopicName.parse(topic.partitioned_name))
            if parent is not None:
                if topic.partition >= parent.partitions:
                    raise TopicNotFoundError(f"{parent.name} has {parent.partitions} partitions", field="topic")
                may_create, persistence = True, parent.persistence
        elif await self.partitions(topic):
            raise UnsupportedError(f"{topic} is partitioned: use its partitions", field="topic")
        if not (may_create and policies.auto_create_topics):
            raise TopicNotFoundError(f"there is no topic {topic}", field="topic")
        with contextlib.suppress(TopicExistsError):
            await self._create_record(topic, persistence)
        return persistence

    async def topics(self, tenant: str, namespace: str, domain: str = PERSISTENT) -> list[TopicName]:
        """Every topic of a namespace, partitions one by one, sorted.

        Raises:
            NamespaceNotFoundError.
        """
        await self.policies(TopicName.parse(f"persistent://{tenant}/{namespace}/any"))
        return await self._names_beside(self.topic_path, TopicName(domain, tenant, namespace, "any", -1))

    async def partitioned_topics(self, tenant: str, namespace: str, domain: str = PERSISTENT) -> list[TopicName]:
        """Every partitioned topic of a namespace, sorted."""
        return await self._names_beside(self.partitioned_path, TopicName(domain, tenant, namespace, "any", -1))

    async def left_in(self, tenant: str, namespace: str) -> list[TopicName]:
        """What there is still in a namespace that may be on its way out: topics, and partitioned ones."""
        names = [TopicName(domain, tenant, namespace, "any", -1) for domain in DOMAINS]
        found: list[TopicName] = []
        for name in names:
            found += await self._names_beside(self.topic_path, name)
            found += await self._names_beside(self.partitioned_path, name)
        return found

    async def forget_partitioned(self, topic: TopicName) -> None:
        """Remove the record that makes a topic partitioned; its partitions stay."""
        with contextlib.suppress(NoNodeError):
            await self._store.delete(self.partitioned_path(topic))

    async def _names_beside(self, path_of: Callable[[TopicName], str], topic: TopicName) -> list[TopicName]:
        """Every topic whose node stands beside the one that a topic of that name would have."""
        try:
            with needs_session():
                children = await self._store.children(path_of(topic).rpartition("/")[0])
        except NoNodeError:
            return []
        before = f"{topic.domain}://{topic.namespace}"
        return [TopicName.parse(f"{before}/{paths.last_part('/' + name)}") for name in children]

    async def _partitioned_record(self, topic: TopicName) -> PartitionedTopicRecord:
        record = await self.partitioned(topic)
        if record is None:
            raise TopicNotFoundError(f"there is no partitioned topic {topic}", field="topic")
        return record

    async def _create_partitions(self, names: Iterable[TopicName], persistence: Persistence | None) -> None:
        limit = asyncio.Semaphore(CREATIONS_AT_ONCE_MAX)

        async def create_partition(name: TopicName) -> None:
            async with limit:
                with contextlib.suppress(TopicExistsError):
                    await self._create_record(name, persistence)

        await asyncio.gather(*(create_partition(name) for name in names))

    async def _create_record(self, topic: TopicName, persistence: Persistence | None) -> None:
        properties = {WHOLE: "true"} if topic.is_persistent else {}
        record = TopicRecord(str(topic), created_ms=now_ms(), persistence=persistence, properties=properties)
        try:
            await self._create_node(topic, self.topic_path(topic), codec.encode(record))
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None

    async def _create_node(self, topic: TopicName, path: str, value: bytes) -> None:
        """Create a node of a namespace that is there at that very moment: it may be about to be deleted."""
        for _ in range(CREATE_ROUNDS_MAX):
            namespace = await self.namespace_of(topic)
            check = Check(paths.namespace(topic.tenant, topic.namespace_name), namespace.version)
            try:
                with needs_session():
                    await self._store.multi([check, Create(path, value)])  # I9
                return
            except NoNodeError:
                with needs_session():
                    await create_parents(self._store, path)
            except BadVersionError:
                continue
        raise ServiceNotReadyError(f"the policies of {topic.namespace} keep changing, ask again")
