"""Stores the runs of a subscription's delayed index in ledgers of their own, which the cursor's record names.

A ledger takes up to ``LEDGER_RUNS_MAX`` runs and is deleted when none of them has an item left. Nothing waits for these
writes: a run that is not stored yet is in memory, and after a crash the entries themselves say when they are due.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from heliograph.actors.broker.cursor.log import CursorLog
from heliograph.actors.broker.delayed.index import Item
from heliograph.actors.broker.delayed.record import decode_run, encode_run
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.broker_log import BrokerLog
from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import HeliographError

LEDGER_RUNS_MAX = 64
DELAYED_LEDGERS = "heliograph.delayed"  # property of the cursor's record: decimal ids, separated by commas

log = logging.getLogger(__name__)


class DelayedLog:
    """The stored runs of one subscription. Calls must not overlap."""

    def __init__(self, cursor_log: CursorLog, chain: Chain, ledgers: LedgersPort) -> None:
        self._cursor_log = cursor_log
        self._chain = chain
        self._ledgers = ledgers
        self._own = BrokerLog(ledgers, "a delayed index")  # its writes are runs
        self._live: dict[int, int] = {}  # ledger -> how many of its runs have items left
        self._reader: LedgerReaderPort | None = None
        self._reader_of = -1  # the ledger that ``_reader`` reads

    async def load(self) -> AsyncIterator[tuple[Position, list[Item | None]]]:
        """Yield every run of the previous owner with its key. Its ledgers are recovered first, which fences it.

        Raises:
            LedgerRecoveryError, QuorumLostError: the runs cannot be read now.
        """
        found = delayed_ledgers(self._cursor_log.properties)
        for ledger_id in found:  # all before the first run: the record keeps naming what is in _live
            self._live[ledger_id] = (await self._ledgers.recover(ledger_id)).last_entry_id + 1
        for ledger_id in found:
            for entry_id in range(self._live[ledger_id]):
                key = Position(ledger_id, entry_id)
                yield key, await self._items(key)
        await self.forget([ledger_id for ledger_id in found if self._live.get(ledger_id) == 0])

    async def store(self, items: Sequence[Item]) -> Position:
        """Store a run and return its key.

        Raises:
            HeliographError: it could not be stored now.
        """
        if self._own.needs_ledger(LEDGER_RUNS_MAX):
            await self._new_ledger()
        writer = self._own.writer
        assert writer is not None, "a ledger was made"
        try:
            entry_id = await writer.add(encode_run(items, self._chain))
        except HeliographError:
            self._own.drop()
            raise
        self._own.writes += 1
        self._live[writer.ledger_id] = self._live.get(writer.ledger_id, 0) + 1
        return Position(writer.ledger_id, entry_id)

    async def read(self, key: Position, first: int, count: int) -> tuple[list[Item | None], int | None]:
        """Return ``count`` items of a run from its item ``first`` on, and the due time of the item after them (None:
        there is none).

        Raises:
            NoSuchLedgerError, EntryDamagedError: the run is lost.
            HeliographError: it cannot be read now.
        """
        items = await self._items(key)
        stop = first + count
        while stop < len(items) and items[stop] is None:
            stop += 1
        behind = items[stop] if stop < len(items) else None
        return items[first:stop], None if behind is None else behind[0]

    async def finished(self, key: Position) -> None:
        """Note that a run has no item left; delete its ledger if it was the last.

        Raises:
            HeliographError: the ledger could not be deleted, and the cursor's record may not name it any more.
        """
        ledger_id = key.ledger_id
        self._live[ledger_id] = self._live.get(ledger_id, 1) - 1
        if self._live[ledger_id] > 0:
            return
        if self._own.writer is not None and self._own.writer.ledger_id == ledger_id:
            self._own.drop()
        await self.forget([ledger_id])

    async def forget(self, ledger_ids: Sequence[int]) -> None:
        """Delete ledgers. Raises as ``finished`` does."""
        if not ledger_ids:
            return
        for ledger_id in ledger_ids:
            self._live.pop(ledger_id, None)
        if self._reader_of in ledger_ids:
            await self._close_reader()
        await self._name_ledgers()
        for ledger_id in ledger_ids:
            await self._ledgers.delete(ledger_id)

    async def forget_all(self) -> None:
        """Delete every ledger. Raises as ``finished`` does."""
        self._own.drop()
        await self.forget(list(self._live))

    async def close(self) -> None:
        """Close the ledgers that are open. A failure is left to the next owner."""
        try:
            await self._close_reader()
        except HeliographError as error:
            log.info("the reader of a delayed index is not closed: %s", error)
        await self._own.close()

    async def delete(self) -> None:
        """Delete every ledger, after the cursor's record was deleted."""
        self._own.drop()
        known = {*self._live, *delayed_ledgers(self._cursor_log.properties)}
        await self._close_reader()
        for ledger_id in sorted(known):
            await self._ledgers.delete(ledger_id)

    async def _items(self, key: Position) -> list[Item | None]:
        if self._reader is None or self._reader_of != key.ledger_id or self._reader.last_add_confirmed < key.entry_id:
            await self._close_reader()
            self._reader, self._reader_of = await self._ledgers.open(key.ledger_id), key.ledger_id
            if self._reader.last_add_confirmed < key.entry_id:
                await self._reader.read_last_add_confirmed()
        found = await self._reader.read(key.entry_id, key.entry_id)
        return decode_run(found[0].payload, self._chain)

    async def _close_reader(self) -> None:
        reader, self._reader, self._reader_of = self._reader, None, -1
        if reader is not None:
            await reader.close()

    async def _new_ledger(self) -> None:
        full, self._own.writer = self._own.writer, None
        if full is not None:
            await full.close()
        await self._own.begin(await self._cursor_log.new_ledger("delayed"), self._name_new)

    async def _name_new(self, writer: LedgerWriterPort) -> int:
        """Name a new ledger in the record. It has no run yet."""
        self._live[writer.ledger_id] = 0
        try:
            await self._name_ledgers()
        except BaseException:
            del self._live[writer.ledger_id]
            raise
        return 0

    async def _name_ledgers(self) -> None:
        """Store the ledgers that have runs with items left in the cursor's record."""
        named = ",".join(map(str, sorted(self._live)))
        await self._cursor_log.set_properties({DELAYED_LEDGERS: named or None})


def delayed_ledgers(properties: Mapping[str, str]) -> list[int]:
    """Return the ledgers that a cursor's record names."""
    return [int(number) for number in properties.get(DELAYED_LEDGERS, "").split(",") if number]
