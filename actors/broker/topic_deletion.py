"""Deleting a topic: first its record says so, then its parts go, last the record. Any step can be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from actors.broker.catalog import Catalog
from actors.broker.delayed_log import delayed_ledgers
from actors.broker.ledgers import Ledgers
from actors.broker.topic import Topic
from actors.broker.topic_record import DELETING, deletable_ledgers
from actors.broker.topics import Topics
from heliograph.errors import TopicBusyError, TopicNotFoundError
from heliograph.protocol.topic_name import TopicName
from metadata.errors import NoNodeError
from metadata.model import CursorRecord, TopicRecord
from metadata.store import MetadataStore
from metadata.update_loop import read, update


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
        topic.begin_close()
        await topics.unload(name)
    await _delete_parts(path, store, ledgers)


async def _delete_parts(path: str, store: MetadataStore, ledgers: Ledgers) -> None:
    def mark(record: TopicRecord) -> TopicRecord | None:
        if DELETING in record.properties:
            return None
        return replace(record, properties={**record.properties, DELETING: "true"})

    record = (await update(store, path, TopicRecord, mark)).record
    for child in await store.children(path):
        with contextlib.suppress(NoNodeError):
            cursor = (await read(store, f"{path}/{child}", CursorRecord)).record
            if cursor.cursor_ledger_id >= 0:
                await ledgers.delete(cursor.cursor_ledger_id)
            for ledger_id in delayed_ledgers(cursor.properties):
                await ledgers.delete(ledger_id)
            await store.delete(f"{path}/{child}")
    compacted = [record.compacted.ledger_id] if record.compacted is not None else []
    for ledger_id in (*deletable_ledgers(record), *compacted, *(info.ledger_id for info in record.ledgers)):
        await ledgers.delete(ledger_id)
    with contextlib.suppress(NoNodeError):
        await store.delete(path)
