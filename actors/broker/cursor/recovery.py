"""Creates durable cursors, and recovers them from a previous owner (I11).

Recovery recovers the cursor ledger, which fences the previous owner's writes, and writes the record back unchanged, so
that its version moves and the previous owner can no longer name another ledger (I13).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.log import CursorLog, CursorPlace
from heliograph.actors.broker.cursor.record import CursorEntry, RecordKind
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.broker_log import read_from_snapshot
from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort, read_recovered
from heliograph.actors.broker.records.owned_record import OwnedRecord, take_over
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError, NoSuchLedgerError
from heliograph.metadata import codec
from heliograph.metadata.model import CursorRecord, Versioned
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)


async def create_cursor(
    place: CursorPlace,
    mark: int,
    chain: Chain,
    store: MetadataStore,
    ledgers: LedgersPort,
    properties: Mapping[str, str],
) -> CursorLog:
    """Create a durable cursor whose first unacknowledged entry is ``mark``. Its first change creates its ledger.

    Raises:
        NodeExistsError: there is a cursor of that name.
    """
    before = chain.position_before(mark)
    record = CursorRecord(place.subscription, (before.ledger_id, before.entry_id), properties=dict(properties))
    await store.create(place.path, codec.encode(record))
    owned = OwnedRecord(store, place.path, Versioned(record, 0))
    return CursorLog(place, owned, Cursor(mark), chain, ledgers)


async def recover_cursor(place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: LedgersPort) -> CursorLog:
    """Recover a durable cursor from its previous owner, with every acknowledgement that was confirmed (I11).

    Raises:
        NoNodeError: there is no such cursor.
        LedgerRecoveryError: its ledger cannot be recovered now; nothing was changed, try again.
    """

    async def load(record: CursorRecord) -> Cursor:
        mark = Position(*record.mark_delete)
        if record.cursor_ledger_id < 0:
            await chain.load(mark)
            return Cursor(chain.after(mark))
        cursor = Cursor(chain.end)  # until its ledger says where it is
        await _replay(record, cursor, chain, ledgers, place)
        return cursor

    owned, cursor = await take_over(store, place.path, CursorRecord, load)
    return CursorLog(place, owned, cursor, chain, ledgers)


async def _replay(record: CursorRecord, cursor: Cursor, chain: Chain, ledgers: LedgersPort, place: CursorPlace) -> None:
    try:
        await read_recovered(
            ledgers, record.cursor_ledger_id, lambda reader, last: _replay_ledger(reader, last, cursor, chain)
        )
    except (NoSuchLedgerError, EntryDamagedError) as error:
        # To deliver again is safe, to skip is not: fall back to the mark in metadata, which is older.
        mark = Position(*record.mark_delete)
        log.error(
            "cursor %s of %s: its ledger is lost, it falls back to %s: %s", place.subscription, place.topic, mark, error
        )
        await chain.load(mark)
        cursor.reset(chain.after(mark))
        cursor.take_delta()


async def _replay_ledger(reader: LedgerReaderPort, last: int, cursor: Cursor, chain: Chain) -> None:
    replay = _Replay(cursor, chain)
    async for record in read_from_snapshot(reader, last, cursor_record.decode):
        await replay.apply(record)


class _Replay:
    """Applies the records of a cursor ledger in order, from the first part of its newest complete snapshot on.

    The parts of any later snapshot are held back until it is complete. The event loop turns after ``STEP_ROWS_MAX``
    rows (I24).
    """

    def __init__(self, cursor: Cursor, chain: Chain) -> None:
        self._cursor = cursor
        self._chain = chain
        self._has_snapshot = False
        self._next_part = 0
        self._held: list[CursorEntry] = []
        self._rows = 0  # since the loop turned

    async def apply(self, record: CursorEntry) -> None:
        """Apply a record, or hold it back."""
        if record.kind is RecordKind.DELTA:
            self._held.clear()
            self._next_part = 0
            await self._apply(record)
            return
        if record.part != self._next_part:
            raise EntryDamagedError(f"part {record.part} of a cursor snapshot instead of part {self._next_part}")
        self._next_part = 0 if record.completes_snapshot else record.part + 1
        self._held.append(record)
        if record.completes_snapshot or not self._has_snapshot:
            for part in self._held:
                await self._apply(part)
            self._held.clear()
        self._has_snapshot = self._has_snapshot or record.completes_snapshot

    async def _apply(self, record: CursorEntry) -> None:
        await self._chain.load(record.mark)  # all else that the record names comes after it
        for rows in cursor_record.apply_record(record, self._cursor, self._chain):
            self._rows += rows
            if self._rows >= cursor_record.STEP_ROWS_MAX:
                self._rows = 0
                await asyncio.sleep(0)
