"""The handle to a ledger for reading, whoever writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from actors.errors import LedgerError, QuorumLostError
from actors.ledger.driver.operation import Operation
from actors.ledger.driver.underreplication import mark_underreplicated
from actors.ledger.driver.world import BookieWorld, World
from actors.ledger.effects import LacFound, LedgerEntry, ReadFinished
from actors.ledger.lac import LacPollCore, LacReadCore
from actors.ledger.limits import MIB
from actors.ledger.reader import ReadCore, check_range
from metadata.model import NO_ENTRY, LedgerMetadata, Versioned
from metadata.paths import ledger as ledger_path
from metadata.update_loop import read


class LedgerReader:
    """Reads confirmed entries of one ledger (I3). It fences nothing and disturbs no writer."""

    def __init__(self, world: World, metadata: Versioned[LedgerMetadata]) -> None:
        self.ledger_id = metadata.record.ledger_id
        self._world = world
        self._metadata = metadata
        self._last_add_confirmed = NO_ENTRY
        self._is_closed = False
        self._reported: set[str] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as last read."""
        return self._metadata.record

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read: of a closed ledger its last one, else the highest LAC learned so far."""
        record = self._metadata.record
        return record.last_entry_id if record.is_closed else self._last_add_confirmed

    async def read(self, first: int, last: int, max_bytes: int = 5 * MIB) -> list[LedgerEntry]:
        """Consecutive entries from ``first`` on: at least one, at most up to ``last``, about ``max_bytes`` of payload.

        Raises:
            NoSuchEntryError: the range ends beyond ``last_add_confirmed``, or no replica has ``first`` any more.
            QuorumLostError: no replica could serve now.
            EntryDamagedError: every copy of ``first`` is damaged.
        """
        check_range(self.metadata, first, last, self.last_add_confirmed)  # I3
        try:
            return await self._read(first, last, max_bytes)
        except LedgerError:
            before = self._metadata.version
            await self.refresh()  # its copies may have moved
            if self._metadata.version == before:
                raise
        return await self._read(first, last, max_bytes)

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the LAC; ``last_add_confirmed`` never goes back.

        Raises:
            QuorumLostError: too few bookies answered.
            MetadataError: the ledger's record could not be read.
        """
        if self.metadata.is_closed:
            return self.last_add_confirmed
        await self.refresh()
        if self.metadata.is_closed:
            return self.last_add_confirmed
        found = cast(LacFound, await Operation(self._world, LacReadCore(self.metadata)).result())
        return self._learn(found.last_add_confirmed)

    async def wait_last_add_confirmed(self, after: int, timeout_ms: int) -> int:
        """Return the LAC once it is above ``after``, or what is known when ``timeout_ms`` have passed.

        Raises:
            QuorumLostError: no bookie answered.
        """
        deadline = self._world.now() + timeout_ms
        while self.last_add_confirmed <= after and not self.metadata.is_closed:
            wait_ms = min(deadline - self._world.now(), 1_000)  # in steps: the ledger may be closed or move meanwhile
            if wait_ms <= 0:
                break
            core = LacPollCore(self.metadata, after, wait_ms, self._world.health)
            try:
                found = cast(LacFound, await Operation(self._world, core).result())
                self._learn(found.last_add_confirmed)
            except QuorumLostError:
                await asyncio.sleep(0.05)
            if self.last_add_confirmed <= after:
                await self.refresh()
        return self.last_add_confirmed

    async def refresh(self) -> LedgerMetadata:
        """Read the ledger's record again.

        Raises:
            NoNodeError: the ledger was deleted.
        """
        fresh = await read(self._world.store, ledger_path(self.ledger_id), LedgerMetadata)
        if fresh.version > self._metadata.version:
            self._metadata = fresh
        return self._metadata.record

    async def close(self) -> None:
        """Nothing is held; here so that owners need not know."""
        self._is_closed = True

    def _learn(self, last_add_confirmed: int) -> int:
        self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)  # I2
        return self.last_add_confirmed

    async def _read(self, first: int, last: int, max_bytes: int) -> list[LedgerEntry]:
        entries = await read_entries(self._world, self.metadata, first, last, max_bytes, self._report)
        if not self.metadata.is_closed:
            self._learn(entries[-1].last_add_confirmed)
        return list(entries)

    def _report(self, bookies: set[str]) -> None:
        """Leave a task for repair, once for each bookie. An open ledger's writer looks after it by itself."""
        fresh = bookies - self._reported
        if fresh and self.metadata.is_closed:
            self._reported |= fresh
            self._world.spawn(mark_underreplicated(self._world.store, self.ledger_id, fresh))


async def read_entries(
    world: BookieWorld,
    record: LedgerMetadata,
    first: int,
    last: int,
    max_bytes: int,
    on_lacking: Callable[[set[str]], None] = lambda bookies: None,
) -> Sequence[LedgerEntry]:
    """Run one read, of a range that ``check_range`` allowed, to its end.

    Args:
        on_lacking: is told of bookies that were found without, or with damaged, copies; also when the read fails.

    Raises:
        what LedgerReader.read does.
    """
    operation = Operation(world, ReadCore(record, first, last, max_bytes, world.health, world.config.reader))
    try:
        finished = cast(ReadFinished, await operation.result())
    finally:
        if operation.bookies_lacking:
            on_lacking(operation.bookies_lacking)
    return finished.entries
