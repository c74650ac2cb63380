"""Deleting a topic that this broker serves: its owner says in its record that it goes, and then lets go of it."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.catalog import Catalog
from actors.broker.ledgers import Ledgers
from actors.broker.topic import Topic
from actors.broker.topic_parts import delete_parts, mark_deleting
from actors.broker.topic_record import DELETING
from actors.broker.topics import Topics
from heliograph.errors import TopicBusyError, TopicNotFoundError
from heliograph.protocol.topic_name import TopicName
from metadata.errors import NoNodeError
from metadata.model import TopicRecord
from metadata.store import MetadataStore
from metadata.update_loop import read


async def delete_topic(
    name: TopicName,
    topics: Topics,
    catalog: Catalog,
    store: MetadataStore,
    ledgers: Ledgers,
    *,
    force: bool,
    unless: Callable[[Topic], bool] = lambda topic: False,
) -> None:
    """Delete a topic that this broker owns.

    Args:
        unless: keeps the topic after all; asked at the moment from which on nobody can use it any more.

    Raises:
        TopicNotFoundError.
        TopicBusyError: it has producers or subscriptions, and ``force`` is not set; or ``unless`` keeps it.
        ServiceNotReadyError: it is another broker's; nothing was deleted.
        MetadataError: it may be deleted in part. The same call goes on, and so does whoever wants to use the name.
    """
    path = catalog.topic_path(name)
    try:
        record = (await read(store, path, TopicRecord)).record
    except NoNodeError:
        raise TopicNotFoundError(f"there is no topic {name}", field="topic") from None
    if DELETING not in record.properties:
        topic = await topics.get(name)
        subscriptions = topic.users
        if not force and (topic.producers or subscriptions):
            raise TopicBusyError(
                f"{name} has {len(topic.producers)} producers and {subscriptions} subscriptions: "
                "remove them, or force it",
                field="topic",
            )
        if unless(topic):
            raise TopicBusyError(f"{name} is used again", field="topic")

        async def mark() -> None:
            if topic.name.is_persistent:
                await topic.ledger.store_property(DELETING, "true")  # I13: from now on nobody can open it
            else:
                await mark_deleting(path, store)

        topic.begin_close()
        await topics.unload(name, mark)
    await delete_parts(path, store, ledgers)
