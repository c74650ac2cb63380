"""The components of a topic in metadata and ledgers, and their deletion: the record is marked first, then cursors,
pieces of the chain and ledgers go, and the record goes last.

Every step can be repeated, by any broker and by several at once: what one finds missing, another one has deleted. The
version of the record tells the topic from a later topic of the same name, which is left alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from heliograph.actors.broker.delayed.log import delayed_ledgers
from heliograph.actors.broker.managed_ledger.trimming import delete_ledgers
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.topic_record import DELETING, deletable_ledgers
from heliograph.metadata import paths
from heliograph.metadata.chain_records import ChainPiece
from heliograph.metadata.errors import BadVersionError, NoNodeError
from heliograph.metadata.model import CursorRecord, TopicRecord, Versioned
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import Check, Delete, MetadataStore


async def mark_deleting(path: str, store: MetadataStore) -> None:
    """Mark the record of a non-persistent topic as being deleted. The owner of a persistent topic marks its record
    itself."""
    with contextlib.suppress(NoNodeError):
        await update(store, path, TopicRecord, _marked)


async def delete_components(path: str, store: MetadataStore, ledgers: LedgersPort) -> None:
    """Delete a topic that is marked as being deleted, or continue an interrupted deletion.

    Args:
        path: the path of the topic's record.

    Raises:
        MetadataError: the topic is deleted in part; the same call continues.
    """
    try:
        found = await read(store, path, TopicRecord)
        if DELETING not in found.record.properties:
            return  # a later topic of that name
        for child in await store.children(path):
            delete = _delete_cursor if paths.is_cursor(child) else _delete_piece
            await delete(path, found.version, child, store, ledgers)
    except (BadVersionError, NoNodeError):
        return  # another caller deleted it
    await delete_ledgers(ledgers, _ledgers_of(found))
    with contextlib.suppress(BadVersionError, NoNodeError):
        await store.delete(path, found.version)


def _marked(record: TopicRecord) -> TopicRecord | None:
    if DELETING in record.properties:
        return None
    return replace(record, properties={**record.properties, DELETING: "true"})


async def _delete_cursor(path: str, version: int, child: str, store: MetadataStore, ledgers: LedgersPort) -> None:
    """Delete one cursor with its ledgers. Raises BadVersionError if the record is that of a later topic, which owns the
    cursor."""
    with contextlib.suppress(NoNodeError):
        cursor = (await read(store, f"{path}/{child}", CursorRecord)).record
        await store.multi([Check(path, version), Delete(f"{path}/{child}")])  # I9
        if cursor.cursor_ledger_id >= 0:
            await ledgers.delete(cursor.cursor_ledger_id)
        for ledger_id in delayed_ledgers(cursor.properties):
            await ledgers.delete(ledger_id)


async def _delete_piece(path: str, version: int, child: str, store: MetadataStore, ledgers: LedgersPort) -> None:
    """Delete one piece of the chain with its ledgers, and those first: only the piece names them. Raises as
    ``_delete_cursor`` does."""
    with contextlib.suppress(NoNodeError):
        piece = (await read(store, f"{path}/{child}", ChainPiece)).record
        await delete_ledgers(ledgers, piece.ledger_ids)
        await store.multi([Check(path, version), Delete(f"{path}/{child}")])  # I9


def _ledgers_of(found: Versioned[TopicRecord]) -> list[int]:
    record = found.record
    compacted = [record.compacted.ledger_id] if record.compacted is not None else []
    return [*deletable_ledgers(record), *compacted, *(info.ledger_id for info in record.ledgers)]
