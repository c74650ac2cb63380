"""Makes snapshots of what a topic's producers sent durable, in a ledger of their own, and finds them again.

The record in metadata is that of a cursor, under a name that no subscription can have: its mark is the position of the
first snapshot of the ledger that it names. Entries of the topic behind the newest durable snapshot are read again at
a takeover, so ``mark`` holds them back from trimming (I14).

Taking over recovers the ledger, which fences the previous owner, and writes the record back unchanged, so that the
previous owner can name no other ledger (I13).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from actors.broker import dedup_record
from actors.broker.chain import Chain
from actors.broker.cursor_log import CursorPlace
from actors.broker.dedup import Remembered
from actors.broker.dedup_record import DedupPart
from actors.broker.ledgers import LedgerReader, Ledgers, LedgerWriter, give_up
from actors.broker.owned_record import OwnedRecord
from actors.broker.position import Position
from actors.broker.topic_record import create_topic_ledger
from actors.errors import EntryDamagedError, LedgerFencedError, NoSuchLedgerError
from heliograph.errors import HeliographError, ServiceNotReadyError
from metadata import codec
from metadata.errors import BadVersionError, NodeExistsError
from metadata.model import CursorRecord, Versioned
from metadata.store import MetadataStore

DEDUP_CURSOR = "pulsar.dedup"  # the name under which the record stands among the topic's cursors
LEDGER_ENTRIES_MAX = 10_000  # records written to one ledger before it is replaced
READ_BYTES_MAX = 5 << 20  # of one read of a snapshot's parts

log = logging.getLogger(__name__)


class DedupLog:
    """The durable side of one topic's deduplication. All calls on one event loop.

    Attributes:
        mark: the first entry of the topic that no durable snapshot knows of.
        on_lost: called when another broker took the topic over.
    """

    def __init__(
        self, place: CursorPlace, owned: OwnedRecord[CursorRecord], chain: Chain, ledgers: Ledgers, mark: int
    ) -> None:
        self.mark = mark
        self.on_lost: Callable[[HeliographError], None] = lambda error: None
        self._place = place
        self._owned = owned
        self._chain = chain
        self._ledgers = ledgers
        self._writer: LedgerWriter | None = None
        self._base = -1
        self._writes = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot is under way; the next one has to wait."""
        return self._writing is not None and not self._writing.done()

    def write(self, snapshot: Sequence[Remembered]) -> None:
        """Start to write a snapshot that knows of every entry confirmed by now."""
        assert not self.is_writing, "one snapshot at a time"
        self._writing = asyncio.get_running_loop().create_task(self._write(snapshot, self._chain.end))

    async def settled(self) -> None:
        """Wait for the snapshot under way, if there is one."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def close(self) -> None:
        """Finish what is under way and close the ledger. Failures are left to the next owner's recovery."""
        await self.settled()
        if self._writer is not None:
            try:
                await self._writer.close()
            except HeliographError as error:
                log.info("%s: closing the deduplication ledger: %s", self._place.topic, error)

    async def delete(self) -> None:
        """Remove everything for good.

        Raises:
            ServiceNotReadyError: another broker owns the topic now.
        """
        await self.settled()
        await self._owned.delete()
        self._let_go()
        if self._owned.record.cursor_ledger_id >= 0:
            await self._ledgers.delete(self._owned.record.cursor_ledger_id)

    def abandon(self) -> None:
        """Write nothing any more (I13)."""
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self, snapshot: Sequence[Remembered], end: int) -> None:
        try:
            if self._writer is None or self._writes >= LEDGER_ENTRIES_MAX:
                await self._start_ledger(snapshot, end)
            else:
                await self._append(self._writer, snapshot, end)
        except (ServiceNotReadyError, LedgerFencedError) as error:
            self.on_lost(error)
        except HeliographError as error:
            log.warning("%s: no snapshot of its producers, later again: %s", self._place.topic, error)
            self._let_go()
        else:
            self.mark = end

    def _let_go(self) -> None:
        """What comes next goes to a new ledger."""
        give_up(self._writer)
        self._writer = None

    async def _append(self, writer: LedgerWriter, snapshot: Sequence[Remembered], end: int) -> None:
        records = dedup_record.encode(snapshot, self._chain.position_before(end), self._base)
        added = await asyncio.gather(*[writer.add(record) for record in records])
        self._base = added[0]
        self._writes += len(records)

    async def _start_ledger(self, snapshot: Sequence[Remembered], end: int) -> None:
        place = self._place
        writer = await create_topic_ledger(self._ledgers, place.topic, place.policies(), "deduplication")
        self._let_go()
        self._base, self._writes = -1, 0
        old, record = self._owned.record.cursor_ledger_id, self._owned.record
        try:
            await self._append(writer, snapshot, end)
            mark = self._chain.position_before(end)
            await self._owned.replace(
                replace(record, mark_delete=(mark.ledger_id, mark.entry_id), cursor_ledger_id=writer.ledger_id)
            )
        except BaseException:
            give_up(writer)
            raise
        self._writer = writer
        if old >= 0:
            await self._ledgers.delete(old)


async def create_dedup(place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: Ledgers) -> DedupLog:
    """Start deduplication of a topic: nothing is known of what was published before.

    Raises:
        ServiceNotReadyError: another broker did so meanwhile.
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
    place: CursorPlace, chain: Chain, store: MetadataStore, ledgers: Ledgers
) -> tuple[DedupLog, tuple[Remembered, ...]]:
    """Take over from the previous owner; returns the newest durable snapshot, known up to the log's ``mark``.

    Raises:
        NoNodeError: the topic has no deduplication.
        LedgerRecoveryError: not now; nothing was changed, try again.
    """
    while True:
        value, stat = await store.get(place.path)
        record = codec.decode(CursorRecord, value)
        position = Position(*record.mark_delete)
        snapshot: tuple[Remembered, ...] = ()
        if record.cursor_ledger_id >= 0:
            position, snapshot = await _read_ledger(record, ledgers, place)
        try:
            stat = await store.set(place.path, value, stat.version)  # the previous owner's version is void now (I13)
        except BadVersionError:
            continue
        owned = OwnedRecord(store, place.path, Versioned(record, stat.version))
        return DedupLog(place, owned, chain, ledgers, chain.after(position)), snapshot


async def _read_ledger(
    record: CursorRecord, ledgers: Ledgers, place: CursorPlace
) -> tuple[Position, tuple[Remembered, ...]]:
    try:
        metadata = await ledgers.recover(record.cursor_ledger_id)
        if metadata.last_entry_id < 0:
            raise EntryDamagedError(f"deduplication ledger {record.cursor_ledger_id} is empty")
        reader = await ledgers.open(record.cursor_ledger_id)
        try:
            return await _read_snapshot(reader, metadata.last_entry_id)
        finally:
            await reader.close()
    except (NoSuchLedgerError, EntryDamagedError) as error:
        # Storing something twice is the safe direction.
        log.error("%s forgets what its producers sent before %s: %s", place.topic, record.mark_delete, error)
        return Position(*record.mark_delete), ()


async def _read_snapshot(reader: LedgerReader, last: int) -> tuple[Position, tuple[Remembered, ...]]:
    newest = dedup_record.decode((await reader.read(last, last))[0].payload)
    at = last - newest.part if newest.completes_snapshot else newest.base
    parts: list[DedupPart] = []
    while at >= 0 and not (parts and parts[-1].completes_snapshot):
        for entry in await reader.read(at, last, READ_BYTES_MAX):
            part = dedup_record.decode(entry.payload)
            if part.part != len(parts):
                raise EntryDamagedError(f"part {part.part} of a snapshot where {len(parts)} was due")
            parts.append(part)
            at += 1
            if part.completes_snapshot:
                break
    if not parts:
        raise EntryDamagedError("the deduplication ledger has no complete snapshot")
    return parts[0].position, tuple(one for part in parts for one in part.producers)
