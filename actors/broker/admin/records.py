"""Views of the stored records of a topic, which is not loaded for them."""

from __future__ import annotations

from typing import Any

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.topic_record import user_properties
from heliograph.actors.broker.subscription.subscription import OWN_PROPERTIES
from heliograph.base.errors import TopicNotFoundError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import CursorRecord, TopicRecord
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]


async def stored_record(store: MetadataStore, topic: TopicName) -> Json:
    """Return the record of a topic without partitions with those of its cursors; see ``topic_record``.

    Raises:
        TopicNotFoundError: there is none.
    """
    path = Catalog.topic_path(topic)
    try:
        with needs_session():
            value, stat = await store.get(path)
            names = [name for name in await store.children(path) if paths.is_cursor(name)]
    except NoNodeError:
        raise TopicNotFoundError(f"there is no topic {topic}", field="topic") from None
    record = codec.decode(TopicRecord, value)
    cursors: dict[str, Json] = {}
    for name in names:
        try:
            with needs_session():
                value, _ = await store.get(f"{path}/{name}")
        except NoNodeError:
            continue  # deleted meanwhile
        cursor = codec.decode(CursorRecord, value)
        cursors[paths.last_part(f"/{name}")] = {
            "ledger_id": cursor.cursor_ledger_id,
            "mark_delete": list(cursor.mark_delete),
            "properties": {key: text for key, text in cursor.properties.items() if not key.startswith(OWN_PROPERTIES)},
        }
    return {
        "version": stat.version,
        "created_ms": record.created_ms,
        "modified_ms": stat.modified_ms,
        "ledgers": [
            {"ledger_id": one.ledger_id, "entries": one.entries, "size": one.size, "closed_ms": one.closed_ms}
            for one in record.ledgers
        ],
        "older": {
            "ledgers": sum(ref.ledgers for ref in record.pieces),
            "entries": sum(ref.entries for ref in record.pieces),
            "size": sum(ref.size for ref in record.pieces),
        },
        "terminated_at": None if record.terminated_at is None else list(record.terminated_at),
        "properties": user_properties(record),
        "cursors": cursors,
    }
