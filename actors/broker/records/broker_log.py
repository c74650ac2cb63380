"""A log of the broker itself: state that is durable in one ledger after another. A record names the valid ledgers.

Cursors, deduplication, the delayed index and compaction have such logs. A new ledger is written first, then named in
the record, and only then the one before it is deleted. So a crash at any point leaves a record that names a whole
ledger. A ledger that no record names is an orphan, which a sweep deletes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort, LedgerWriterPort, abandon_writer
from heliograph.actors.errors import EntryDamagedError
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError

READ_BYTES_MAX = 5 << 20  # of one read of a log

log = logging.getLogger(__name__)


class SnapshotPart(Protocol):
    """A record of a log that is one part of a snapshot, or names one."""

    @property
    def base(self) -> int:
        """The entry id of the first part of the newest complete snapshot before this record; -1: there is none."""

    @property
    def part(self) -> int:
        """The number of this part, from 0."""

    @property
    def completes_snapshot(self) -> bool:
        """Whether this is the last part of its snapshot."""


P = TypeVar("P", bound=SnapshotPart)


class BrokerLog:
    """The ledger that is being written to. All calls on one event loop; calls must not overlap.

    Attributes:
        writer: None before the first record, and after a failure: the next record starts a new ledger.
        writes: records in its ledger.
    """

    def __init__(self, ledgers: LedgersPort, name: str) -> None:
        """
        Args:
            name: the log's subject, for log lines.
        """
        self._ledgers = ledgers
        self._name = name
        self.writer: LedgerWriterPort | None = None
        self.writes = 0

    def needs_ledger(self, entries_max: int) -> bool:
        """Return whether the next record has to start a new ledger."""
        return self.writer is None or self.writes >= entries_max

    async def begin(
        self, writer: LedgerWriterPort, fill: Callable[[LedgerWriterPort], Awaitable[int]], *, is_deleted: bool = False
    ) -> None:
        """Continue in a new ledger, once ``fill`` has written its first records, named it and returned their number.

        After a failure the new ledger is abandoned, and the log is as before.

        Args:
            is_deleted: delete the new ledger after a failure, because no record can name it.
        """
        try:
            writes = await fill(writer)
        except BaseException:
            abandon_writer(writer)
            if is_deleted:
                await self.delete(writer.ledger_id)
            raise
        self.drop()
        self.writer, self.writes = writer, writes

    def drop(self) -> None:
        """Abandon the ledger; the next record starts a new one."""
        abandon_writer(self.writer)
        self.writer = None

    async def close(self) -> None:
        """Close the ledger. A failure is left to the recovery of the next owner."""
        if self.writer is not None:
            try:
                await self.writer.close()
            except HeliographError as error:
                log.info("%s: its ledger is left to the next owner: %s", self._name, error)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that no record names any more; -1 is none. If that fails now, a sweep deletes it later."""
        if ledger_id < 0:
            return
        try:
            await shielded(self._ledgers.delete(ledger_id))
        except HeliographError as error:
            log.warning("%s: ledger %d is an orphan, which is deleted later: %s", self._name, ledger_id, error)


async def add_all(writer: LedgerWriterPort, records: Sequence[bytes]) -> int:
    """Add records, one in a turn of the event loop, and return the entry id of the first once all are durable."""
    added: list[asyncio.Future[int]] = []
    for record in records:
        added.append(writer.add(record))
        added[-1].add_done_callback(mark_seen)  # after the first failure the others are not awaited
        if len(added) < len(records):
            await asyncio.sleep(0)
    return (await asyncio.gather(*added))[0]


def mark_seen(added: asyncio.Future[int]) -> None:
    """Take note of the failure of an add that may not be awaited."""
    if not added.cancelled():
        added.exception()


async def read_from_snapshot(
    reader: LedgerReaderPort, last: int, decode: Callable[[bytes | memoryview], P]
) -> AsyncIterator[P]:
    """Yield the records of a ledger in order, from the first part of its newest complete snapshot on.

    Raises:
        EntryDamagedError: there is no complete snapshot, or a record is damaged.
    """
    newest = decode((await reader.read(last, last))[0].payload)
    at = last - newest.part if newest.completes_snapshot else newest.base
    if at < 0:
        raise EntryDamagedError("the ledger has no complete snapshot")
    while at <= last:
        for entry in await reader.read(at, last, READ_BYTES_MAX):
            yield decode(entry.payload)
            at = entry.entry_id + 1
