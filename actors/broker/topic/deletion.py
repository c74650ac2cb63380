"""Deletion of a topic that this broker serves: the owner marks the record, closes the topic, and deletes its
components."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.topic_record import DELETING
from heliograph.actors.broker.topic.components import delete_components, mark_deleting
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.errors import TopicBusyError, TopicNotFoundError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import TopicRecord
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName


async def delete_topic(
    name: TopicName,
    topics: Topics,
    catalog: Catalog,
    store: MetadataStore,
    ledgers: LedgersPort,
    *,
    force: bool,
    unless: Callable[[BrokerTopic], bool] = lambda topic: False,
) -> None:
    """Delete a topic that this broker owns.

    Args:
        force: delete it although it has producers or consumers. Subscriptions that no consumer uses keep no topic, as
            Pulsar has it.
        unless: returns True to keep the topic after all; called at the last moment before the topic is closed.

    Raises:
        TopicNotFoundError: there is no such topic.
        TopicBusyError: it has producers or consumers and ``force`` is not set, or ``unless`` keeps it.
        ServiceNotReadyError: another broker owns it; nothing was deleted.
        MetadataError: it may be deleted in part. The same call continues, and so does the next use of the name.
    """
    path = catalog.topic_path(name)
    try:
        record = (await read(store, path, TopicRecord)).record
    except NoNodeError:
        raise TopicNotFoundError(f"there is no topic {name}", field="topic") from None
    if DELETING not in record.properties:
        topic = await topics.get(name)
        if not force and (topic.producers or topic.consumers):
            raise TopicBusyError(
                f"{name} has {len(topic.producers)} producers and {topic.consumers} consumers: close them, or force it",
                field="topic",
            )
        if unless(topic):
            raise TopicBusyError(f"{name} is used again", field="topic")

        async def mark() -> None:
            if topic.name.is_persistent:
                await topic.ledger.store_property(DELETING, "true")  # I13: no broker can open it from now on
            else:
                await mark_deleting(path, store)

        topic.begin_close()
        await topics.unload(name, mark)
    await delete_components(path, store, ledgers)
