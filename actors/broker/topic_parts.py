"""What a topic consists of, and its removal: first its record says so, then its parts go, last the record.

Any step can be repeated, by anybody, also by several at once: what one of them finds gone, another one removed. The
record's version tells the topic from a successor of its name, which is left alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from actors.broker.delayed_log import delayed_ledgers
from actors.broker.ledgers import Ledgers
from actors.broker.topic_record import DELETING, deletable_ledgers
from metadata.errors import BadVersionError, NoNodeError
from metadata.model import CursorRecord, TopicRecord, Versioned
from metadata.store import Check, Delete, MetadataStore
from metadata.update_loop import read, update


async def mark_deleting(path: str, store: MetadataStore) -> None:
    """Have the record of a topic without storage say that the topic goes. One that is stored has an owner to say so."""
    with contextlib.suppress(NoNodeError):
        await update(store, path, TopicRecord, _marked)


async def delete_parts(path: str, store: MetadataStore, ledgers: Ledgers) -> None:
    """Delete a topic whose record says that it goes, or go on where that stopped.

    Args:
        path: of its record.

    Raises:
        MetadataError: it is deleted in part; the same call goes on.
    """
    try:
        found = await read(store, path, TopicRecord)
        if DELETING not in found.record.properties:
            return  # it is another one by now
        for child in await store.children(path):
            await _delete_cursor(path, found.version, child, store, ledgers)
    except (BadVersionError, NoNodeError):
        return  # somebody else was quicker
    for ledger_id in _ledgers_of(found):
        await ledgers.delete(ledger_id)
    with contextlib.suppress(BadVersionError, NoNodeError):
        await store.delete(path, found.version)


def _marked(record: TopicRecord) -> TopicRecord | None:
    if DELETING in record.properties:
        return None
    return replace(record, properties={**record.properties, DELETING: "true"})


async def _delete_cursor(path: str, version: int, child: str, store: MetadataStore, ledgers: Ledgers) -> None:
    """Raises BadVersionError when the record is another one by now: then the cursor is its."""
    with contextlib.suppress(NoNodeError):
        cursor = (await read(store, f"{path}/{child}", CursorRecord)).record
        await store.multi([Check(path, version), Delete(f"{path}/{child}")])  # I9
        if cursor.cursor_ledger_id >= 0:
            await ledgers.delete(cursor.cursor_ledger_id)
        for ledger_id in delayed_ledgers(cursor.properties):
            await ledgers.delete(ledger_id)


def _ledgers_of(found: Versioned[TopicRecord]) -> list[int]:
    record = found.record
    compacted = [record.compacted.ledger_id] if record.compacted is not None else []
    return [*deletable_ledgers(record), *compacted, *(info.ledger_id for info in record.ledgers)]
