"""Topics, partitioned topics and namespaces as metadata knows them. Any broker may ask; nothing here needs ownership.

Creating a topic is one write of its record and needs no owner either: the record is the topic. Deleting a loaded topic
is its owner's work (``topic_deletion.py``).
"""

from __future__ import annotations

import asyncio
import contextlib

from actors.broker.session_guard import needs_session
from actors.broker.topic_record import now_ms
from heliograph.errors import (
    NamespaceNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.protocol.topic_name import TopicName
from metadata import codec, paths
from metadata.errors import NodeExistsError, NoNodeError
from metadata.model import NamespacePolicies, PartitionedTopicRecord, Persistence, TopicRecord
from metadata.store import MetadataStore
from metadata.update_loop import read

PARTITIONS_MAX = 10_000  # of one topic
CREATIONS_AT_ONCE_MAX = 64  # records of partitions being written


class Catalog:
    """Reads and writes the records that say which topics there are."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @staticmethod
    def topic_path(topic: TopicName) -> str:
        """The node of a topic's record."""
        return paths.topic(topic.tenant, topic.namespace_name, topic.local_name)

    async def policies(self, topic: TopicName) -> NamespacePolicies:
        """What holds in the topic's namespace.

        Raises:
            NamespaceNotFoundError.
            UnsupportedError: for non-persistent topics.
            ServiceNotReadyError: this broker's session is over; another broker, or its next session, can tell.
        """
        if not topic.is_persistent:
            raise UnsupportedError("non-persistent topics are not offered by this version", field="topic")
        try:
            path = paths.namespace(topic.tenant, topic.namespace_name)
            with needs_session():
                return (await read(self._store, path, NamespacePolicies)).record
        except NoNodeError:
            raise NamespaceNotFoundError(f"there is no namespace {topic.namespace}", field="namespace") from None

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
        path = paths.partitioned_topic(topic.tenant, topic.namespace_name, topic.local_name)
        try:
            with needs_session():
                return (await read(self._store, path, PartitionedTopicRecord)).record
        except NoNodeError:
            return None

    async def create(self, topic: TopicName, partitions: int = 0, persistence: Persistence | None = None) -> None:
        """Create a topic; a partitioned one with all its partitions.

        A failed call may have created some of the partitions; the same call goes on where it stopped.

        Raises:
            TopicExistsError, NamespaceNotFoundError, UnsupportedError (non-persistent).
        """
        await self.policies(topic)
        if partitions == 0:
            if await self.partitions(topic):
                raise TopicExistsError(f"{topic} exists and is partitioned", field="topic")
            await self._create_record(topic, persistence)
            return
        if await self.exists(topic):
            raise TopicExistsError(f"{topic} exists and is not partitioned", field="topic")
        path = paths.partitioned_topic(topic.tenant, topic.namespace_name, topic.local_name)
        record = PartitionedTopicRecord(str(topic), partitions, now_ms(), persistence)
        if await self._store.exists(path) is not None:
            raise TopicExistsError(f"{topic} exists", field="topic")
        limit = asyncio.Semaphore(CREATIONS_AT_ONCE_MAX)

        async def create_partition(name: TopicName) -> None:
            async with limit:
                with contextlib.suppress(TopicExistsError):
                    await self._create_record(name, persistence)

        await asyncio.gather(*(create_partition(name) for name in topic.partitions(partitions)))
        try:  # last, so that whoever sees the partitioned topic sees all of it
            await self._store.create(path, codec.encode(record), parents=True)
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None

    async def ensure(self, topic: TopicName, *, may_create: bool = True) -> None:
        """Make sure that there is a topic to serve under this name, creating it where policies allow.

        Raises:
            TopicNotFoundError: there is none, and it may not be created.
            UnsupportedError: the name is that of a partitioned topic, which is served partition by partition.
            NamespaceNotFoundError.
        """
        if await self.exists(topic):
            return
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

    async def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """Every topic of a namespace, partitions one by one, sorted.

        Raises:
            NamespaceNotFoundError.
        """
        with needs_session():
            stat = await self._store.exists(paths.namespace(tenant, namespace))
        if stat is None:
            raise NamespaceNotFoundError(f"there is no namespace {tenant}/{namespace}", field="namespace")
        folder = paths.topic(tenant, namespace, "x").rsplit("/", 1)[0]
        return await self._names_below(folder, tenant, namespace)

    async def partitioned_topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """Every partitioned topic of a namespace, sorted."""
        folder = paths.partitioned_topic(tenant, namespace, "x").rsplit("/", 1)[0]
        return await self._names_below(folder, tenant, namespace)

    async def forget_partitioned(self, topic: TopicName) -> None:
        """Remove the record that makes a topic partitioned; its partitions stay."""
        with contextlib.suppress(NoNodeError):
            await self._store.delete(paths.partitioned_topic(topic.tenant, topic.namespace_name, topic.local_name))

    async def _names_below(self, folder: str, tenant: str, namespace: str) -> list[TopicName]:
        try:
            with needs_session():
                children = await self._store.children(folder)
        except NoNodeError:
            return []
        return [
            TopicName.parse(f"persistent://{tenant}/{namespace}/{paths.last_part('/' + name)}") for name in children
        ]

    async def _create_record(self, topic: TopicName, persistence: Persistence | None) -> None:
        record = TopicRecord(str(topic), created_ms=now_ms(), persistence=persistence)
        try:
            await self._store.create(self.topic_path(topic), codec.encode(record), parents=True)
        except NodeExistsError:
            raise TopicExistsError(f"{topic} exists", field="topic") from None
