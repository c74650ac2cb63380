"""The scrub: reads every stored entry in the background, so that damage is found before a reader needs the copy.

A pass reads each row of the index, verifies the checksums of its entries, and compares the spans of the index with the
entries that metadata places on this bookie. An entry is damaged if none of its copies on this bookie can be read. For a
ledger with damaged or missing entries a task is left in metadata: a replication worker reads all copies here and writes
the bad ones again from another bookie. Nothing is changed or removed here.

The last segment of an open ledger cannot be repaired, so its task waits until the ledger is closed.

Place and counts outlive the bookie's process: a restart continues the pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.store.storage import ENTRY_ID_MAX, BookieStorage
from heliograph.actors.bookie.upkeep import scrub_record
from heliograph.actors.bookie.upkeep.limbo import is_complete
from heliograph.actors.bookie.upkeep.scrub_record import ScrubRecord
from heliograph.actors.bookie.upkeep.scrub_step import Place, verify_rows
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.base.backoff import Backoff
from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.metadata import paths
from heliograph.metadata.errors import MetadataError, NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.repair_tasks import extend_task
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

LEDGER_BYTES = 16 << 10  # counted for each ledger, so that many small ones do not flood the metadata store
FIRST_PASS_SECONDS = 600.0  # after the start, at the earliest, unless the interval is shorter
RESUME_SECONDS = 60.0  # after the start, for a pass that an earlier process began
SAVE_SECONDS = 60.0  # time between two writes of the record; a crash loses as much of the place and the counts
PAUSE_CHECK_SECONDS = 5.0  # time between two looks whether scrubs are paused, or whether there is room for tasks
UNCLOSED_CHECK_SECONDS = 60.0  # time between two looks whether damaged ledgers were closed, or mended
TASKS_OUTSTANDING_MAX = 10_000  # tasks in metadata, above which a scrub waits before it marks more (I15)
MARKS_BETWEEN_COUNTS = 100  # marks between two counts of the tasks
RETRY_MS = 1_000  # first pause after the metadata store did not answer
RETRY_MS_MAX = 60_000
UNCLOSED_MAX = 1_000  # damaged open ledgers that are remembered; the next pass finds the others again (I15)
MARKED_MAX = 1_000  # marked ledgers that are watched until they are mended; the others are not counted then (I15)
LOGGED_ENTRIES_MAX = 5  # damaged entries of one ledger that its log line names

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ScrubStatistics:
    """Sums of all passes of the bookie, also before its latest start, and the state of the running pass."""

    passes: int = 0
    entries: int = 0
    bytes: int = 0
    damaged_entries: int = 0
    incomplete_ledgers: int = 0  # ledgers whose index lacks entries that metadata places here
    ledgers_marked: int = 0
    ledgers_mended: int = 0  # of those that were marked
    ledgers_left: int = 0  # of the running pass
    begun_ms: int = 0  # when the latest pass began, and the latest complete one ended: since the epoch, 0: never
    ended_ms: int = 0
    next_ledger: int = -1  # the running pass has read those below; -1: none is under way
    entries_per_second: float = 0.0  # of the running pass in this process, or of the latest one
    is_paused: bool = False


class Scrub:
    """Runs passes over all stored entries, one after another."""

    def __init__(
        self,
        storage: BookieStorage,
        threads: ReadThreads,
        store: Callable[[], MetadataStore | None],
        on_failure: Callable[[BaseException], None],
        record: ScrubRecord,
    ) -> None:
        """
        Args:
            threads: read the index and the entry logs.
            store: returns the current metadata session; None: damage is only logged and counted.
            on_failure: called after a failed sync, and for a bug.
            record: of an earlier process of the bookie.
        """
        self._storage = storage
        self._threads = threads
        self._store = store
        self._on_failure = on_failure
        self._bookie_id = storage.config.bookie_id
        self._bytes_per_second = storage.config.scrub_bytes_per_second
        self._unclosed = dict.fromkeys(record.unclosed)  # damaged ledgers that are open; at most UNCLOSED_MAX (I15)
        self._marked = dict.fromkeys(record.marked)  # ledgers that are not mended yet; at most MARKED_MAX (I15)
        self._saved_at = float("-inf")  # seconds of the loop's clock
        self._paused_checked = self._unclosed_checked = float("-inf")  # seconds of the loop's clock
        self._marks_left = 0  # until the tasks are counted
        self._task: asyncio.Task[None] | None = None
        kept = {name: value for name, value in asdict(record).items() if name not in ("marked", "unclosed")}
        self.statistics = ScrubStatistics(**kept)

    def start(self) -> None:
        """Start the passes, unless the rate is 0."""
        if self._bytes_per_second:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """Stop, and keep the place. A step that runs on a thread ends well."""
        await end_task(self._task)
        if self._task is not None and self._saved_at > float("-inf"):
            with contextlib.suppress(BookieStorageError):  # it serves people, and spares the next process some work
                await self._save()
        self._task = None

    def figures(self) -> dict[str, Any]:
        """Return the statistics by the names of their metrics."""
        found = {f"scrub_{name}": value for name, value in asdict(self.statistics).items()}
        found["is_scrub_paused"] = found.pop("scrub_is_paused")
        return found

    async def scrub(self) -> int:
        """Run one pass, or the rest of a pass that an earlier process began.

        Returns:
            how many of the ledgers read have damaged or missing entries.

        Raises:
            DiskPoisonedError: a sync failed before, so the state of the disk is unknown.
        """
        found, statistics = 0, self.statistics
        if statistics.next_ledger < 0:
            statistics.begun_ms, statistics.next_ledger = wall_ms(), 0
        clock = asyncio.get_running_loop().time
        began, entries_before = clock(), statistics.entries
        ledger_ids = [ledger_id for ledger_id in sorted(self._storage.ledgers.ids()) if ledger_id >= self._next]
        for number, ledger_id in enumerate(ledger_ids):
            statistics.ledgers_left = len(ledger_ids) - number
            statistics.next_ledger = ledger_id
            found += await self._until_told(ledger_id)
            await self._look_if_due()
            await self._save_if_due()
            await self._pace(LEDGER_BYTES)
            statistics.entries_per_second = (statistics.entries - entries_before) / max(clock() - began, 1e-3)
        statistics.ledgers_left, statistics.next_ledger = 0, -1
        statistics.passes += 1
        statistics.ended_ms = wall_ms()
        await self._save()
        return found

    @property
    def _next(self) -> int:
        return self.statistics.next_ledger

    async def _save_if_due(self) -> None:
        if asyncio.get_running_loop().time() - self._saved_at >= SAVE_SECONDS:
            await self._save()

    async def _save(self) -> None:
        """Write the record; a disk that is full keeps the old one.

        Raises:
            DiskPoisonedError: the state of the disk is unknown.
        """
        loop, found = asyncio.get_running_loop(), self.statistics
        self._saved_at = loop.time()
        lists = {"marked": tuple(self._marked), "unclosed": tuple(self._unclosed)}
        kept: dict[str, Any] = {item.name: getattr(found, item.name, ()) for item in fields(ScrubRecord)}
        record = ScrubRecord(**{**kept, **lists})
        directory = self._storage.directories[0].path
        try:
            await self._threads.begin(partial(scrub_record.save, self._storage.disk, directory, record))
        except DiskPoisonedError:
            raise
        except BookieStorageError as error:
            log.warning("the place of the scrub is not stored: %s", error)

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

    async def look_at_marked(self) -> None:
        """Count the marked ledgers whose tasks are done.

        Raises:
            MetadataError: the store did not answer; those left are looked at again.
        """
        store = self._store()
        for ledger_id in list(self._marked) if store is not None else ():
            assert store is not None, "there are ledgers to look at"
            if await store.exists(paths.underreplicated(ledger_id)) is None:
                self.statistics.ledgers_mended += ledger_id in self._storage.ledgers.ids()  # not if it was deleted
                self._marked.pop(ledger_id, None)

    async def _look_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if not (self._unclosed or self._marked) or now - self._unclosed_checked < UNCLOSED_CHECK_SECONDS:
            return
        self._unclosed_checked = now
        before = (len(self._unclosed), len(self._marked))
        try:
            await self.look_at_unclosed()
            await self.look_at_marked()
        except MetadataError as error:
            log.warning("damaged ledgers are looked at later: %s", error)
        if before != (len(self._unclosed), len(self._marked)):
            await self._save()

    async def _run(self) -> None:
        interval = self._storage.config.scrub_interval_ms / 1000
        clock = asyncio.get_running_loop().time
        due = clock() + self._first_pause(interval)
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

    def _first_pause(self, interval: float) -> float:
        """Return the seconds until the first pass of this process: at once one that was under way, else when it is due.

        The wall clock may jump, so no pause is longer than the interval.
        """
        if self._next >= 0:
            return min(interval, RESUME_SECONDS)
        since_last = (wall_ms() - self.statistics.begun_ms) / 1000
        return min(interval, max(FIRST_PASS_SECONDS, interval - since_last))

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
        storage = self._storage
        directory = storage.directory_of(ledger_id)
        damaged: list[int] = []
        place: Place | None = (-1, -1, -1)
        while place is not None:
            await self._wait_while_paused()
            step = await self._threads.begin(partial(verify_rows, directory, ledger_id, place))
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

        return await self._threads.begin(look)

    async def _mark(self, store: MetadataStore, ledger_id: int) -> None:
        while self._marks_left == 0:
            if len(await store.children(paths.UNDERREPLICATED)) < TASKS_OUTSTANDING_MAX:
                self._marks_left = MARKS_BETWEEN_COUNTS
            else:
                await asyncio.sleep(PAUSE_CHECK_SECONDS)
        self._marks_left -= 1
        if await extend_task(store, ledger_id, (self._bookie_id,), (self._bookie_id,)):
            self.statistics.ledgers_marked += 1
            if len(self._marked) < MARKED_MAX:
                self._marked[ledger_id] = None
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
