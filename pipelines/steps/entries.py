"""Entries of one topic, read from bookies at random. They belong to one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from heliograph.actors.ledger.driver import DetachedReader
from heliograph.base.backoff import Attempts, Backoff
from heliograph.base.errors import Advice, HeliographError, NotFoundError
from heliograph.pipelines.planning.plan import plan_once
from heliograph.pipelines.planning.ranges import LedgerRange, Position, narrow
from heliograph.pipelines.reading.nearby import nearby_bookies
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.admin.admin import Admin

READS_AT_ONCE = 8  # of one topic in a process, each of up to READ_BYTES_MAX  # I15
READ_BYTES_MAX = 1 << 20  # of one answer of a bookie  # I15
WAIT_SECONDS = 60.0  # that a read is tried again
PAUSE_MS, PAUSE_MS_MAX = 50, 2_000
REFUSED_MAX = 3  # reads by one plan after the other: a grant ended, or the ledger was deleted


class _Bookies:
    """A reader of the bookies that one plan names, closed when nothing uses it any more."""

    def __init__(self, ranges: Sequence[LedgerRange], piece: LedgerRange) -> None:
        self.addresses = {bookie: address for one in (*ranges, piece) for bookie, address in one.addresses}
        racks = {bookie: rack for one in (*ranges, piece) for bookie, rack in one.racks}
        self.grant = piece.grant
        nearby = nearby_bookies(self.addresses, racks)
        self.reader = DetachedReader(self.addresses, None, piece.grant, piece.authority, nearby)
        self.users = 0

    def serves(self, piece: LedgerRange) -> bool:
        return piece.grant == self.grant and all(self.addresses.get(one) == address for one, address in piece.addresses)


class TopicEntries:
    """The entries of a topic without partitions, whose producers make no batches.

    A plan says where they are. It is made again when an entry is asked for that it does not have, or when reads fail:
    copies move, and grants end.
    """

    def __init__(self, topic: str, admin: Any) -> None:
        self._topic = TopicName.parse(topic)
        self._admin = cast("Admin", admin)
        self._ranges: dict[int, LedgerRange] = {}
        self._bookies: list[_Bookies] = []  # the last one is of the newest plan; others are still used
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._planning = asyncio.Lock()
        self._plans = 0

    async def after(self, position: Position | None) -> list[tuple[Position, memoryview]]:
        """Return the payloads of all entries from a position on, as they are acknowledged now; None: of all.

        Raises:
            TopicNotFoundError: there is no such topic.
            DataLostError: the entry at the position was deleted, or the topic was.
        """
        ranges = await plan_once(self._topic, self._admin, None if position is None else {-1: position})
        if not ranges:
            return []
        self._keep(ranges)
        found: list[tuple[Position, memoryview]] = []
        for piece in ranges:
            entries = await self._run_of(piece.ledger_id, piece.first_entry_id, piece.last_entry_id)
            found += [((piece.ledger_id, entry_id), payload) for entry_id, payload in entries]
        return found

    async def read(self, positions: Iterable[Position]) -> dict[Position, memoryview]:
        """Return the payloads of entries, several of which are read at once.

        Raises:
            TopicNotFoundError: there is no such topic.
            NotFoundError: it has no such entry.
            HeliographError: no copy could be read for a minute; says why.
        """
        runs: list[tuple[int, int, int]] = []
        for ledger_id, entry_id in sorted(set(positions)):
            if runs and runs[-1][0] == ledger_id and runs[-1][2] + 1 == entry_id:
                runs[-1] = ledger_id, runs[-1][1], entry_id
            else:
                runs.append((ledger_id, entry_id, entry_id))
        answers = await asyncio.gather(*(self._run_of(*run) for run in runs))
        return {(run[0], one): payload for run, entries in zip(runs, answers, strict=True) for one, payload in entries}

    async def close(self) -> None:
        bookies, self._bookies = self._bookies, []
        for one in bookies:
            await one.reader.close()

    async def _run_of(self, ledger_id: int, first: int, last: int) -> list[tuple[int, memoryview]]:
        found: list[tuple[int, memoryview]] = []
        while first <= last:
            async with self._turns:
                entries = await self._with_retries(ledger_id, first, last)
            found += entries
            first = entries[-1][0] + 1
        return found

    async def _with_retries(self, ledger_id: int, first: int, last: int) -> list[tuple[int, memoryview]]:
        attempts = Attempts(WAIT_SECONDS, Backoff(PAUSE_MS, PAUSE_MS_MAX), asyncio.get_running_loop().time)
        seen = -1  # the plan that the last attempt used
        refused = 0
        while True:
            is_planned = False
            try:
                piece = await self._range_with(ledger_id, last, newer_than=seen)
                is_planned, seen = True, self._plans
                async with self._reader_of(piece) as reader:
                    entries = await reader.read(narrow(piece, first, last).record(), first, last, READ_BYTES_MAX)
                return [(entry.entry_id, topic_entry.split(entry.payload)[1]) for entry in entries]
            except HeliographError as error:
                refused += error.advice is Advice.STOP
                if error.advice is Advice.STOP and (not is_planned or refused == REFUSED_MAX):
                    raise
                await asyncio.sleep(attempts.pause_after(error))

    async def _range_with(self, ledger_id: int, entry_id: int, newer_than: int) -> LedgerRange:
        """Return the range with an entry, of a plan later than the one with number ``newer_than``."""
        if not self._has(ledger_id, entry_id) or self._plans <= newer_than:
            async with self._planning:
                if not self._has(ledger_id, entry_id) or self._plans <= newer_than:
                    self._ranges = {}
                    self._keep(await plan_once(self._topic, self._admin))
        if not self._has(ledger_id, entry_id):
            raise NotFoundError(f"{self._topic} has no entry {ledger_id}:{entry_id}", field="locations")
        return self._ranges[ledger_id]

    def _has(self, ledger_id: int, entry_id: int) -> bool:
        known = self._ranges.get(ledger_id)
        return known is not None and known.first_entry_id <= entry_id <= known.last_entry_id

    def _keep(self, ranges: Sequence[LedgerRange]) -> None:
        self._plans += 1
        for piece in ranges:
            known = self._ranges.get(piece.ledger_id)
            if known is None or known.first_entry_id >= piece.first_entry_id:
                self._ranges[piece.ledger_id] = piece
            elif known.last_entry_id < piece.last_entry_id:
                del self._ranges[piece.ledger_id]
                self._ranges[piece.ledger_id] = piece

    @contextlib.asynccontextmanager
    async def _reader_of(self, piece: LedgerRange) -> AsyncIterator[DetachedReader]:
        bookies = next((one for one in reversed(self._bookies) if one.serves(piece)), None)
        if bookies is None:
            bookies = _Bookies([*self._ranges.values()], piece)
            self._bookies.append(bookies)
        bookies.users += 1
        try:
            yield bookies.reader
        finally:
            bookies.users -= 1
            unused = [one for one in self._bookies[:-1] if not one.users]
            self._bookies = [one for one in self._bookies if one not in unused]
            for one in unused:
                await one.reader.close()
