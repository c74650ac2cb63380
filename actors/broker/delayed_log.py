"""Keeps the runs of a subscription's delayed index in ledgers of their own, named by the cursor's record.

A ledger takes up to ``LEDGER_RUNS_MAX`` runs and is deleted when the last of them has no item left. Nothing waits for
these writes: a run that is not stored yet is in memory, and after a crash the entries themselves say when they are due.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from actors.broker.chain import Chain
from actors.broker.cursor_log import CursorLog
from actors.broker.delayed_index import Item
from actors.broker.delayed_record import decode_run, encode_run
from actors.broker.ledgers import LedgerReader, Ledgers, LedgerWriter, give_up
from actors.broker.position import Position
from heliograph.errors import HeliographError

LEDGER_RUNS_MAX = 64
DELAYED_LEDGERS = "heliograph.delayed"  # property of the cursor's record: ids in decimal, with commas

log = logging.getLogger(__name__)


class DelayedLog:
    """The stored runs of one subscription. Calls must not overlap."""

    def __init__(self, cursor_log: CursorLog, chain: Chain, ledgers: Ledgers) -> None:
        self._cursor_log = cursor_log
        self._chain = chain
        self._ledgers = ledgers
        self._writer: LedgerWriter | None = None
        self._written = 0  # runs in the writer's ledger
        self._live: dict[int, int] = {}  # ledger -> its runs with items left
        self._reader: LedgerReader | None = None
        self._reader_of = -1

    async def load(self) -> AsyncIterator[tuple[Position, list[Item | None]]]:
        """Every run of the previous owner, whose ledgers are fenced first.

        Raises:
            LedgerRecoveryError, QuorumLostError: not now.
        """
        found = delayed_ledgers(self._cursor_log.properties)
        for ledger_id in found:  # all before the first run: what is in _live stays named
            self._live[ledger_id] = (await self._ledgers.recover(ledger_id)).last_entry_id + 1
        for ledger_id in found:
            for entry_id in range(self._live[ledger_id]):
                key = Position(ledger_id, entry_id)
                yield key, await self._items(key)
        await self.forget([ledger_id for ledger_id in found if self._live.get(ledger_id) == 0])

    async def store(self, items: Sequence[Item]) -> Position:
        """Store a run.

        Raises:
            HeliographError: it could not be stored now.
        """
        if self._writer is None or self._written >= LEDGER_RUNS_MAX:
            await self._new_ledger()
        writer = self._writer
        assert writer is not None, "a ledger was made"
        try:
            entry_id = await writer.add(encode_run(items, self._chain))
        except HeliographError:
            self._let_go()
            raise
        self._written += 1
        self._live[writer.ledger_id] = self._live.get(writer.ledger_id, 0) + 1
        return Position(writer.ledger_id, entry_id)

    async def read(self, key: Position, first: int, count: int) -> tuple[list[Item | None], int | None]:
        """``count`` items of a run from its item ``first`` on, and the due time behind them (None: the run ends).

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
        """A run has no item left; its ledger goes when it is the last.

        Raises:
            HeliographError: the ledger stays behind, named by nobody.
        """
        ledger_id = key.ledger_id
        self._live[ledger_id] = self._live.get(ledger_id, 1) - 1
        if self._live[ledger_id] > 0:
            return
        if self._writer is not None and self._writer.ledger_id == ledger_id:
            self._let_go()
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
        self._let_go()
        await self.forget(list(self._live))

    async def close(self) -> None:
        """Close what is open; failures are left to the next owner."""
        try:
            await self._close_reader()
            if self._writer is not None:
                await self._writer.close()
        except HeliographError as error:
            log.info("delayed index: closing: %s", error)

    async def delete(self) -> None:
        """Delete every ledger; the cursor's record is gone."""
        self._let_go()
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

    def _let_go(self) -> None:
        """The next run goes to a new ledger."""
        give_up(self._writer)
        self._writer = None

    async def _new_ledger(self) -> None:
        old, self._writer = self._writer, None
        if old is not None:
            await old.close()
        writer = await self._cursor_log.new_ledger("delayed")
        self._live[writer.ledger_id] = 0
        try:
            await self._name_ledgers()
        except BaseException:
            del self._live[writer.ledger_id]
            give_up(writer)
            raise
        self._writer, self._written = writer, 0

    async def _name_ledgers(self) -> None:
        """Have the cursor's record name the ledgers that count, and no others."""
        named = ",".join(map(str, sorted(self._live)))
        await self._cursor_log.set_properties({DELAYED_LEDGERS: named or None})


def delayed_ledgers(properties: Mapping[str, str]) -> list[int]:
    """The ledgers that a cursor's record names."""
    return [int(number) for number in properties.get(DELAYED_LEDGERS, "").split(",") if number]
