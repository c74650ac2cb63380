"""The scrub: reads every stored entry in the background, so that damage is found before a reader needs the copy.

A pass reads each row of the index, verifies the checksums of its entries, and compares the spans of the index with the
entries that metadata places on this bookie. An entry is damaged if none of its copies on this bookie can be read. For a
ledger with damaged or missing entries a task is left in metadata: a replication worker reads all copies here and writes
the bad ones again from another bookie. Nothing is changed or removed here.

The last segment of an open ledger cannot be repaired, so its task waits until the ledger is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from heliograph.actors.bookie.disk.blocks import own_memory
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import EntryRun
from heliograph.actors.bookie.store.storage import ENTRY_ID_MAX, BookieStorage
from heliograph.actors.bookie.upkeep.limbo import is_complete
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError, EntryDamagedError
from heliograph.base.backoff import Backoff
from heliograph.base.completion import end_task
from heliograph.metadata import paths
from heliograph.metadata.errors import MetadataError, NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.repair_tasks import extend_task
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

STEP_BYTES = 512 << 10  # most bytes that one step reads, except for one larger entry
STEP_ROWS = 64  # most rows of the index that one step holds
LEDGER_BYTES = 16 << 10  # counted for each ledger, so that many small ones do not flood the metadata store
FIRST_PASS_SECONDS = 600.0  # after the start, unless the interval is shorter
PAUSE_CHECK_SECONDS = 5.0  # time between two looks whether scrubs are paused, or whether there is room for tasks
UNCLOSED_CHECK_SECONDS = 60.0  # time between two looks whether damaged open ledgers were closed
TASKS_OUTSTANDING_MAX = 10_000  # tasks in metadata, above which a scrub waits before it marks more (I15)
MARKS_BETWEEN_COUNTS = 100  # marks between two counts of the tasks
RETRY_MS = 1_000  # first pause after the metadata store did not answer
RETRY_MS_MAX = 60_000
UNCLOSED_MAX = 1_000  # damaged open ledgers that are remembered; the next pass finds the others again (I15)
LOGGED_ENTRIES_MAX = 5  # damaged entries of one ledger that its log line names

log = logging.getLogger(__name__)
Place = tuple[int, int, int]  # of a row: first entry id, log id, offset


@dataclass(slots=True)
class ScrubStatistics:
    """Sums since the start, and the state of the running pass."""

    passes: int = 0
    entries: int = 0
    bytes: int = 0
    damaged_entries: int = 0
    incomplete_ledgers: int = 0  # ledgers whose index lacks entries that metadata places here
    ledgers_marked: int = 0
    ledgers_left: int = 0  # of the running pass
    is_paused: bool = False


@dataclass(slots=True)
class _StepResult:
    """What one step on the thread found."""

    place: Place | None  # of the last row that was read; None: the ledger has no further rows
    entries: int = 0
    size: int = 0
    damaged: tuple[int, ...] = ()


class Scrub:
    """Runs passes over all stored entries, one after another."""

    def __init__(
        self,
        storage: BookieStorage,
        threads: Executor,
        store: Callable[[], MetadataStore | None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            threads: read the index and the entry logs.
            store: returns the current metadata session; None: damage is only logged and counted.
            on_failure: called after a failed sync, and for a bug.
        """
        self._storage = storage
        self._threads = threads
        self._store = store
        self._on_failure = on_failure
        self._bookie_id = storage.config.bookie_id
        self._bytes_per_second = storage.config.scrub_bytes_per_second
        self._unclosed: dict[int, None] = {}  # damaged ledgers that are still open; at most UNCLOSED_MAX (I15)
        self._paused_checked = self._unclosed_checked = float("-inf")  # seconds of the loop's clock
        self._marks_left = 0  # until the tasks are counted
        self._task: asyncio.Task[None] | None = None
        self.statistics = ScrubStatistics()

    def start(self) -> None:
        """Start the passes, unless the rate is 0."""
        if self._bytes_per_second:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """Stop. A step that runs on a thread ends well."""
        await end_task(self._task)
        self._task = None

    def figures(self) -> dict[str, Any]:
        """Return the statistics by the names that ``BookieStatistics`` has for them."""
        found = self.statistics
        return {
            "scrub_passes": found.passes,
            "scrub_entries": found.entries,
            "scrub_bytes": found.bytes,
            "scrub_damaged_entries": found.damaged_entries,
            "scrub_incomplete_ledgers": found.incomplete_ledgers,
            "scrub_ledgers_marked": found.ledgers_marked,
            "scrub_ledgers_left": found.ledgers_left,
            "is_scrub_paused": found.is_paused,
        }

    async def scrub(self) -> int:
        """Run one pass. Return how many ledgers have damaged or missing entries.

        Raises:
            DiskPoisonedError: a sync failed before, so the state of the disk is unknown.
        """
        found = 0
        ledger_ids = sorted(self._storage.ledgers.ids())
        for number, ledger_id in enumerate(ledger_ids):
            self.statistics.ledgers_left = len(ledger_ids) - number
            found += await self._until_told(ledger_id)
            await self._look_if_due()
            await self._pace(LEDGER_BYTES)
        self.statistics.ledgers_left = 0
        self.statistics.passes += 1
        return found

    async def look_at_unclosed(self) -> None:
        """Mark damaged ledgers that were closed since they were found.

        Raises:
            MetadataError: the store did not answer; those left are looked at again.
        """
        store = self._store()
        if store is None:
            return
        for ledger_id in list(self._unclosed):
            record = await _record(store, ledger_id)
            if record is not None and record.is_closed and self._bookie_id in _bookies(record):
                await self._mark(store, ledger_id)
            if record is None or record.is_closed:
                self._unclosed.pop(ledger_id, None)

    async def _look_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._unclosed or now - self._unclosed_checked < UNCLOSED_CHECK_SECONDS:
            return
        self._unclosed_checked = now
        try:
            await self.look_at_unclosed()
        except MetadataError as error:
            log.warning("damaged open ledgers are looked at later: %s", error)

    async def _run(self) -> None:
        interval = self._storage.config.scrub_interval_ms / 1000
        clock = asyncio.get_running_loop().time
        due = clock() + min(interval, FIRST_PASS_SECONDS)
        while True:
            try:
                while clock() < due:
                    await asyncio.sleep(min(PAUSE_CHECK_SECONDS, max(0.0, due - clock())))
                    await self._look_if_due()
                due = clock() + interval
                await self.scrub()
            except Exception as error:  # a sync failed, or a bug of ours
                self._on_failure(error)
                return

    async def _until_told(self, ledger_id: int) -> bool:
        """Read a ledger's entries, again while the metadata store does not answer, so that no damage stays untold."""
        pauses = Backoff(RETRY_MS, RETRY_MS_MAX)
        while True:
            try:
                return await self._scrub_ledger(ledger_id)
            except DiskPoisonedError:
                raise
            except BookieStorageError as error:  # the next pass examines it again
                log.warning("the scrub could not examine ledger %d: %s", ledger_id, error)
                return False
            except MetadataError as error:
                log.warning("the scrub of ledger %d is repeated: %s", ledger_id, error)
                await asyncio.sleep(pauses.pause())

    async def _scrub_ledger(self, ledger_id: int) -> bool:
        """Read a ledger's entries. Return whether some are damaged or missing."""
        storage, loop = self._storage, asyncio.get_running_loop()
        directory = storage.directory_of(ledger_id)
        damaged: list[int] = []
        place: Place | None = (-1, -1, -1)
        while place is not None:
            await self._wait_while_paused()
            step = await loop.run_in_executor(self._threads, _scrub_step, directory, ledger_id, place)
            damaged += [n for n in step.damaged if storage.write_cache.get(ledger_id, n) is None]
            self.statistics.entries += step.entries
            self.statistics.bytes += step.size
            place = step.place
            await self._pace(step.size)
        store = self._store()
        state = storage.ledgers.get(ledger_id)
        if state is None or store is None:  # deleted meanwhile, or nobody to tell
            return self._note(ledger_id, damaged, is_incomplete=False) if state is not None else False
        record = await _record(store, ledger_id)
        if record is None:
            return False  # garbage collection deletes it
        end = record.last_entry_id if record.is_closed else ENTRY_ID_MAX
        damaged = [n for n in damaged if n <= end and self._bookie_id in record.segment_of(n).bookies]
        is_incomplete = not state.is_limbo and not await self._has_all(record)
        if not self._note(ledger_id, damaged, is_incomplete=is_incomplete):
            return False
        first_open = ENTRY_ID_MAX if record.is_closed else record.last_segment.first_entry_id
        if is_incomplete or damaged[0] < first_open:
            await self._mark(store, ledger_id)
        if damaged and damaged[-1] >= first_open and len(self._unclosed) < UNCLOSED_MAX:
            self._unclosed[ledger_id] = None
        return True

    def _note(self, ledger_id: int, damaged: list[int], *, is_incomplete: bool) -> bool:
        """Count and log damage. Return whether there is any."""
        damaged.sort()
        self.statistics.damaged_entries += len(damaged)
        self.statistics.incomplete_ledgers += is_incomplete
        if damaged:
            named = ", ".join(map(str, damaged[:LOGGED_ENTRIES_MAX])) + ", ..." * (len(damaged) > LOGGED_ENTRIES_MAX)
            log.error("scrub: %d entries of ledger %d cannot be read: %s", len(damaged), ledger_id, named)
        if is_incomplete:
            log.error("scrub: entries of ledger %d that belong on this bookie are missing", ledger_id)
        return bool(damaged) or is_incomplete

    async def _has_all(self, record: LedgerMetadata) -> bool:
        storage, ledger_id = self._storage, record.ledger_id
        cached = [(n, n) for n in storage.write_cache.entry_ids(ledger_id)]  # before the disk: a flush may come between

        def look() -> bool:
            spans: Sequence[tuple[int, int]] = storage.spans_on_disk(ledger_id, 0, ENTRY_ID_MAX)
            return is_complete(record, self._bookie_id, [*cached, *spans])

        return await asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def _mark(self, store: MetadataStore, ledger_id: int) -> None:
        while self._marks_left == 0:
            if len(await store.children(paths.UNDERREPLICATED)) < TASKS_OUTSTANDING_MAX:
                self._marks_left = MARKS_BETWEEN_COUNTS
            else:
                await asyncio.sleep(PAUSE_CHECK_SECONDS)
        self._marks_left -= 1
        if await extend_task(store, ledger_id, (self._bookie_id,), (self._bookie_id,)):
            self.statistics.ledgers_marked += 1
            log.info("ledger %d is marked for repair", ledger_id)

    async def _pace(self, size: int) -> None:
        if self._bytes_per_second:
            await asyncio.sleep(size / self._bytes_per_second)

    async def _wait_while_paused(self) -> None:
        clock = asyncio.get_running_loop().time
        while clock() - self._paused_checked >= PAUSE_CHECK_SECONDS or self.statistics.is_paused:
            store = self._store()
            self.statistics.is_paused = store is not None and await store.exists(paths.SCRUB_DISABLED) is not None
            self._paused_checked = clock()
            if self.statistics.is_paused:
                await asyncio.sleep(PAUSE_CHECK_SECONDS)


async def _record(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    """Return the ledger's record; None if it was deleted or cannot be read."""
    try:
        return (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
    except NoNodeError:
        return None
    except RecordError as error:
        log.warning("the scrub leaves out ledger %d: %s", ledger_id, error)
        return None


def _bookies(record: LedgerMetadata) -> set[str]:
    return {bookie_id for segment in record.segments for bookie_id in segment.bookies}


def _scrub_step(directory: DataDirectory, ledger_id: int, after: Place) -> _StepResult:
    """Verify the rows of a ledger that follow ``after``, up to a number of bytes. Blocks."""
    rows = (run for run in directory.index.runs(ledger_id, max(after[0], 0)) if _place(run) > after)
    step, damaged = _StepResult(None), []
    for run in islice(rows, STEP_ROWS):
        damaged += _damaged_in(directory, run)
        step.place = _place(run)
        step.entries += len(run.sizes)
        step.size += sum(run.sizes)
        if step.size >= STEP_BYTES:
            break
    step.damaged = tuple(sorted(set(damaged)))
    return step


def _damaged_in(directory: DataDirectory, run: EntryRun) -> list[int]:
    """Return the entries of a row of which no copy of this bookie can be read. Blocks."""
    damaged: list[int] = []
    first, end = run.first_entry_id, run.first_entry_id + len(run.sizes)
    while first < end:
        try:
            sizes, _ = directory.reader.read_into(run, first, STEP_BYTES, own_memory)
            first += len(sizes)
        except DiskPoisonedError:
            raise
        except (EntryDamagedError, BookieStorageError, FileNotFoundError):
            if not _is_readable(directory, run.ledger_id, first):
                damaged.append(first)
            first += 1
    return damaged


def _is_readable(directory: DataDirectory, ledger_id: int, entry_id: int) -> bool:
    """Return whether a read of the entry succeeds by another copy, or the entry is gone."""
    try:
        directory.read(ledger_id, entry_id, entry_id, 1)
    except DiskPoisonedError:
        raise
    except (EntryDamagedError, BookieStorageError):
        return False
    return True


def _place(run: EntryRun) -> Place:
    return run.first_entry_id, run.log_id, run.offset
