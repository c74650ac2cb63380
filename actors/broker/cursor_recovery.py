"""Makes durable cursors, and takes them over from a previous owner (I11).

Taking over: the cursor ledger is recovered (which fences the previous owner's writes), and the record is written back
unchanged, so that its version moves and the previous owner can no longer put another ledger in its place (I13).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from actors.broker import cursor_record
from actors.broker.chain import Chain
from actors.broker.cursor import Cursor
from actors.broker.cursor_log import CursorLog, CursorPlace
from actors.broker.cursor_record import CursorEntry, RecordKind
from actors.broker.ledgers import LedgerReader, Ledgers
from actors.broker.owned_record import OwnedRecord
from actors.broker.position import Position
from actors.errors import EntryDamagedError, NoSuchLedgerError
from metadata import codec
from metadata.errors import BadVersionError
from metadata.model import CursorRecord, Versioned
from metadata.store import MetadataStore

READ_BYTES_MAX = 5 << 20  # of one read while replaying

log = logging.getLogger(__name__)


async def create_cursor(
    place: CursorPlace,
    mark: int,
    chain: Chain,
    store: MetadataStore,
    ledgers: Ledgers,
    properties: Mapping[str, str],
) -> CursorLog:
    """A new durable cursor whose first unacknowledged entry is ``mark``; it has no ledger before its first change.

    Raises:
        NodeExistsError: there is a cursor of that name.
    """
    before = chain.position_before(mark)
    record = CursorRecord(place.subscription, (before.ledger_id, before.entry_id), properties=dict(properties))
    await store.create(place.path, codec.encode(record))
    owned = OwnedRecord(store, place.path, Versioned(record, 0))
    return CursorLog(place, owned, Cursor(mark), chain, ledgers)


async def recover_cursor(place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: Ledgers) -> CursorLog:
    """Take a durable cursor over from its previous owner, with every acknowledgement that was confirmed (I11).

    Raises:
        NoNodeError: there is no such cursor.
        LedgerRecoveryError: its ledger cannot be recovered now; nothing was changed, try again.
    """
    while True:
        value, stat = await store.get(place.path)
        record = codec.decode(CursorRecord, value)
        cursor = Cursor(chain.after(_position(record)))
        if record.cursor_ledger_id >= 0:
            await _replay(record, cursor, chain, ledgers, place)
        try:
            stat = await store.set(place.path, value, stat.version)  # the previous owner's version is void now (I13)
        except BadVersionError:
            continue
        owned = OwnedRecord(store, place.path, Versioned(record, stat.version))
        return CursorLog(place, owned, cursor, chain, ledgers)


async def _replay(record: CursorRecord, cursor: Cursor, chain: Chain, ledgers: Ledgers, place: CursorPlace) -> None:
    try:
        metadata = await ledgers.recover(record.cursor_ledger_id)
        if metadata.last_entry_id < 0:
            raise EntryDamagedError(f"cursor ledger {record.cursor_ledger_id} is empty")
        reader = await ledgers.open(record.cursor_ledger_id)
        try:
            await _replay_ledger(reader, metadata.last_entry_id, cursor, chain)
        finally:
            await reader.close()
    except (NoSuchLedgerError, EntryDamagedError) as error:
        # Redelivery is the safe direction: fall back to the mark in metadata, which is older.
        log.error("cursor %s of %s falls back to %s: %s", place.subscription, place.topic, record.mark_delete, error)
        cursor.reset(chain.after(_position(record)))
        cursor.take_delta()


async def _replay_ledger(reader: LedgerReader, last: int, cursor: Cursor, chain: Chain) -> None:
    newest = cursor_record.decode((await reader.read(last, last))[0].payload)
    at = last - newest.part if newest.completes_snapshot else newest.base
    if at < 0:
        raise EntryDamagedError("the cursor ledger has no complete snapshot")
    parts: list[CursorEntry] = []
    while at <= last:
        for entry in await reader.read(at, last, READ_BYTES_MAX):
            parts = _apply(cursor_record.decode(entry.payload), parts, cursor, chain)
            at = entry.entry_id + 1


def _apply(record: CursorEntry, parts: list[CursorEntry], cursor: Cursor, chain: Chain) -> list[CursorEntry]:
    """Apply a record; the parts of a snapshot are held back until it is whole. Returns the parts held back."""
    if record.kind is RecordKind.DELTA:
        cursor_record.apply_record(record, cursor, chain)
        return []
    if record.part != len(parts):
        raise EntryDamagedError(f"part {record.part} of a cursor snapshot where {len(parts)} was due")
    parts.append(record)
    if not record.completes_snapshot:
        return parts
    for part in parts:
        cursor_record.apply_record(part, cursor, chain)
    return []


def _position(record: CursorRecord) -> Position:
    return Position(*record.mark_delete)
