"""The handle to a ledger for reading, whoever writes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import cast

from actors.errors import EntryDamagedError, LedgerError, NoSuchLedgerError, QuorumLostError
from actors.ledger.driver.operation import Operation
from actors.ledger.driver.underreplication import mark_underreplicated
from actors.ledger.driver.world import BookieWorld, World
from actors.ledger.effects import LacFound, LedgerEntry, ReadFinished
from actors.ledger.lac import LacPollCore, LacReadCore
from actors.ledger.limits import MIB
from actors.ledger.reader import ReadCore, check_range
from metadata.errors import NoNodeError
from metadata.model import NO_ENTRY, LedgerMetadata, Versioned
from metadata.paths import ledger as ledger_path
from metadata.update_loop import read

POLL_MS_MAX = 1_000  # of one bookie: the ledger may be closed or move meanwhile
POLL_PAUSE_MS = 50  # after a bookie that answered at once without news; doubles up to POLL_MS_MAX


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
            NoSuchLedgerError: it was deleted.
            MetadataError: no copy was found where it should be, and the ledger's record could not be read again.
        """
        check_range(self.metadata, first, last, self.last_add_confirmed)  # I3
        try:
            return await self._read(first, last, max_bytes)
        except (LedgerError, EntryDamagedError):
            before = self._metadata.version
            await self.refresh()  # its copies may have moved
            if self._metadata.version == before:
                raise
        return await self._read(first, last, max_bytes)

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the LAC; ``last_add_confirmed`` never goes back.

        Raises:
            QuorumLostError: too few bookies answered.
            NoSuchLedgerError: it was deleted.
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
            NoSuchLedgerError: it was deleted.
            MetadataError: the ledger's record could not be read.
        """
        world, turn, pause_ms = self._world, 0, POLL_PAUSE_MS
        deadline = world.now() + timeout_ms
        while self.last_add_confirmed <= after and not self.metadata.is_closed:
            asked_at = world.now()
            wait_ms = min(deadline - asked_at, POLL_MS_MAX)
            if wait_ms <= 0:
                break
            core = LacPollCore(self.metadata, after, wait_ms, world.health, turn)
            turn += 1
            with contextlib.suppress(QuorumLostError):  # nobody answers now
                found = cast(LacFound, await Operation(world, core).result())
                self._learn(found.last_add_confirmed)
            if self.last_add_confirmed <= after:
                await self.refresh()
                if world.now() < asked_at + wait_ms:  # a bookie that has nothing of the ledger does not wait
                    await asyncio.sleep(min(pause_ms, deadline - world.now()) / 1000)
                    pause_ms = min(2 * pause_ms, POLL_MS_MAX)
        return self.last_add_confirmed

    async def refresh(self) -> LedgerMetadata:
        """Read the ledger's record again.

        Raises:
            NoSuchLedgerError: it was deleted.
            RecordError: the record is damaged, or written by a newer version.
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        try:
            fresh = await read(self._world.store, ledger_path(self.ledger_id), LedgerMetadata)
        except NoNodeError as error:
            raise NoSuchLedgerError(
                f"ledger {self.ledger_id} is not in metadata: it was deleted", field="ledger_id"
            ) from error
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
