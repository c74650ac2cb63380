"""Makes snapshots of a topic's producers durable in a ledger of their own, and recovers them.

The record in metadata is that of a cursor, under a name that no subscription can have. Its mark is the position of the
first snapshot in the ledger that it names. Entries of the topic after the newest durable snapshot are read again at a
takeover, so ``mark`` keeps them from being trimmed (I14).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.dedup import record as dedup_record
from heliograph.actors.broker.dedup.dedup import Stored
from heliograph.actors.broker.dedup.record import DedupPart
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.broker_log import BrokerLog, add_all, read_from_snapshot
from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort, LedgerWriterPort, read_recovered
from heliograph.actors.broker.records.owned_record import OwnedRecord, take_over
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_record import create_topic_ledger
from heliograph.actors.errors import EntryDamagedError, LedgerFencedError, NoSuchLedgerError
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata import codec
from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.model import CursorRecord, Versioned
from heliograph.metadata.store import MetadataStore

DEDUP_CURSOR = "pulsar.dedup"  # the name under which the record stands among the topic's cursors
LEDGER_ENTRIES_MAX = 10_000  # records in one ledger before it is replaced

log = logging.getLogger(__name__)


class DedupLog:
    """The durable side of one topic's deduplication. All calls on one event loop.

    Attributes:
        mark: the first entry of the topic that is in no durable snapshot.
        on_lost: called when another broker took the topic over.
    """

    def __init__(
        self, place: CursorPlace, owned: OwnedRecord[CursorRecord], chain: Chain, ledgers: LedgersPort, mark: int
    ) -> None:
        self.mark = mark
        self.on_lost: Callable[[HeliographError], None] = lambda error: None
        self._place = place
        self._owned = owned
        self._chain = chain
        self._ledgers = ledgers
        self._own = BrokerLog(ledgers, f"deduplication of {place.topic}")
        self._base = -1
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_writing(self) -> bool:
        """Return whether a snapshot is being written; the next one has to wait."""
        return self._writing is not None and not self._writing.done()

    def write(self, snapshot: Sequence[Stored]) -> None:
        """Start to write a snapshot that covers every entry confirmed by now."""
        assert not self.is_writing, "one snapshot at a time"
        self._writing = asyncio.get_running_loop().create_task(self._write(snapshot, self._chain.end))

    async def settled(self) -> None:
        """Wait until no snapshot is being written."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def close(self) -> None:
        """Finish the snapshot in flight and close the ledger. A failure is left to the recovery of the next owner."""
        await self.settled()
        await self._own.close()

    async def delete(self) -> None:
        """Delete the record and the ledger for good.

        Raises:
            ServiceNotReadyError: another broker owns the topic now.
        """
        await self.settled()
        await self._owned.delete()
        self._own.drop()
        if self._owned.record.cursor_ledger_id >= 0:
            await self._ledgers.delete(self._owned.record.cursor_ledger_id)

    def abandon(self) -> None:
        """Write nothing from now on (I13)."""
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self, snapshot: Sequence[Stored], end: int) -> None:
        try:
            if self._own.writer is None or self._own.writes >= LEDGER_ENTRIES_MAX:
                await self._start_ledger(snapshot, end)
            else:
                self._own.writes += await self._append(self._own.writer, snapshot, end, self._base)
        except (ServiceNotReadyError, LedgerFencedError) as error:
            self.on_lost(error)
        except HeliographError as error:
            log.warning("%s: a snapshot of its producers cannot be stored now: %s", self._place.topic, error)
            self._own.drop()
        else:
            assert end >= self.mark, "a snapshot covers all that earlier snapshots cover"  # I14
            self.mark = end

    async def _append(self, writer: LedgerWriterPort, snapshot: Sequence[Stored], end: int, base: int) -> int:
        records = dedup_record.encode(snapshot, self._chain.position_before(end), base)
        self._base = await add_all(writer, records)
        return len(records)

    async def _start_ledger(self, snapshot: Sequence[Stored], end: int) -> None:
        place, old = self._place, self._owned.record

        async def fill(writer: LedgerWriterPort) -> int:
            writes = await self._append(writer, snapshot, end, -1)
            mark, ledger_id = self._chain.position_before(end), writer.ledger_id
            named = replace(old, mark_delete=(mark.ledger_id, mark.entry_id), cursor_ledger_id=ledger_id)
            await self._owned.replace(named)
            return writes

        writer = await create_topic_ledger(self._ledgers, place.topic, place.policies(), "deduplication")
        await self._own.begin(writer, fill)
        await self._own.delete(old.cursor_ledger_id)


async def create_dedup(place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: LedgersPort) -> DedupLog:
    """Start deduplication of a topic. Earlier messages are not known.

    Raises:
        ServiceNotReadyError: another broker started it meanwhile.
    """
    mark = chain.end
    before = chain.position_before(mark)
    record = CursorRecord(place.subscription, (before.ledger_id, before.entry_id))
    try:
        await store.create(place.path, codec.encode(record))
    except NodeExistsError as error:
        raise ServiceNotReadyError(f"deduplication of {place.topic} was begun by another broker") from error
    return DedupLog(place, OwnedRecord(store, place.path, Versioned(record, 0)), chain, ledgers, mark)


async def recover_dedup(
    place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: LedgersPort
) -> tuple[DedupLog, tuple[Stored, ...]]:
    """Recover deduplication from the previous owner.

    Returns:
        the log, and the newest durable snapshot, which covers every entry before the log's ``mark``.

    Raises:
        NoNodeError: the topic has no deduplication.
        LedgerRecoveryError: the ledger cannot be recovered now; nothing was changed, try again.
    """

    async def load(record: CursorRecord) -> tuple[Position, tuple[Stored, ...]]:
        mark = Position(*record.mark_delete)
        if record.cursor_ledger_id < 0:
            return mark, ()
        try:
            return await read_recovered(ledgers, record.cursor_ledger_id, _read_snapshot)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            # To store an entry twice is safe, to drop it is not.
            log.error("%s: its deduplication ledger is lost, nothing is known after %s: %s", place.topic, mark, error)
            return mark, ()

    owned, (position, snapshot) = await take_over(store, place.path, CursorRecord, load)
    await chain.load(position)
    return DedupLog(place, owned, chain, ledgers, chain.after(position)), snapshot


async def _read_snapshot(reader: LedgerReaderPort, last: int) -> tuple[Position, tuple[Stored, ...]]:
    parts: list[DedupPart] = []
    async for part in read_from_snapshot(reader, last, dedup_record.decode):
        if part.part != len(parts):
            raise EntryDamagedError(f"part {part.part} of a snapshot instead of part {len(parts)}")
        parts.append(part)
        if part.completes_snapshot:
            return parts[0].position, tuple(one for part in parts for one in part.producers)
    raise EntryDamagedError("the deduplication ledger has no complete snapshot")
