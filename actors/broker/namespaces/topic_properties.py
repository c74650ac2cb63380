"""The properties that users attach to topics, in the records of the topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.properties import changed_properties
from heliograph.actors.broker.records.topic_record import user_properties, with_user_properties
from heliograph.base.errors import TopicNotFoundError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import PartitionedTopicRecord, TopicRecord
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName


class TopicProperties:
    """Reads the properties of topics, and changes the properties of topics without an owner."""

    def __init__(self, catalog: Catalog, store: MetadataStore) -> None:
        self._catalog = catalog
        self._store = store

    async def of(self, topic: TopicName) -> dict[str, str]:
        """Return the user's properties of a topic, partitioned or not.

        Raises:
            TopicNotFoundError.
        """
        parent = await self._catalog.partitioned(topic)
        if parent is not None:
            return dict(parent.properties)
        try:
            with needs_session():
                return user_properties((await read(self._store, self._catalog.topic_path(topic), TopicRecord)).record)
        except NoNodeError:
            raise TopicNotFoundError(f"there is no topic {topic}", field="topic") from None

    async def change(self, topic: TopicName, changes: Mapping[str, str | None]) -> None:
        """Change the user's properties of a topic that is partitioned or not persistent; None removes one.

        The record of any other topic belongs to the topic's owner.

        Raises:
            TopicNotFoundError.
            BadRequestError: they are no text, or too large.
        """

        def changed(record: PartitionedTopicRecord) -> PartitionedTopicRecord:
            return replace(record, properties=changed_properties(record.properties, changes))

        def changed_own(record: TopicRecord) -> TopicRecord:
            return with_user_properties(record, changed_properties(user_properties(record), changes))

        try:
            with needs_session():
                if await self._catalog.partitioned(topic) is not None:
                    await update(self._store, self._catalog.partitioned_path(topic), PartitionedTopicRecord, changed)
                else:
                    assert not topic.is_persistent, "the owner changes its record"
                    await update(self._store, self._catalog.topic_path(topic), TopicRecord, changed_own)
        except NoNodeError:
            raise TopicNotFoundError(f"there is no topic {topic}", field="topic") from None
