"""Keeps the placements of all ledgers by their changes: it reads each changed record that a watch names once.

The first tour reads every record, page by page. From then on a recursive watch tells which ledgers were created,
changed and deleted. A connection that was lost, or more changes at once than are kept, may have hidden some; then
another tour begins. While nothing was missed, a slow tour reads one page in each audit, so that no error stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from heliograph.actors.auditor.ledger_scan import read_records
from heliograph.actors.auditor.placements.index import LedgerPlacement, PlacementIndex, placement_of
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.paths import LEDGERS_PER_DIRECTORY
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import CHILDREN_PAGE_MAX, EventType, MetadataStore, WatchEvent

DIGITS_OF_DIRECTORY = 4  # in the name of a directory of ledgers

log = logging.getLogger(__name__)
quiet = QuietLog(log)

CHANGED_MAX = 100_000  # ledgers with changes that were not read yet; beyond that a tour finds them (I15)
# Records of a tour that are read before it pauses: a page. On a busy machine a tour waits for a core after each pause:
# with 100 records between pauses it took more than twice as long at a load of 20, and a fifth more of processor.
READS_PER_STEP = CHILDREN_PAGE_MAX
TOUR_PAUSE_SECONDS = 0.1  # so that a tour leaves half of a core, and most of the store, to others
NO_LEDGER_BEYOND = 1 << 62

OnChange = Callable[[LedgerPlacement | None, LedgerPlacement | None], None]  # of a ledger: before, and now


class LedgerFollower:
    """The placements in one session of the store.

    Args:
        on_change: called with every change of the index.

    Attributes:
        index: the placements. Changes since the latest ``catch_up`` are not in it.
        unreadable: ledgers whose records are damaged or of a newer version; they are not in the index.
        records_read: since the start.
    """

    def __init__(self, store: MetadataStore, reads_at_once_max: int, on_change: OnChange) -> None:
        self.index = PlacementIndex()
        self.unreadable: set[int] = set()
        self.records_read = 0
        self._store = store
        self._gate = asyncio.Semaphore(reads_at_once_max)
        self._on_change = on_change
        self._changes = Changes(store, (paths.LEDGERS,), self._on_event, self._on_missed)
        self._is_following = False
        self._changed: dict[int, bool] = {}  # ledgers with changes that were not read, and whether they were deleted
        self._next_id = 0  # of the tour
        self._read_since_pause = 0  # reads of the tour
        self._is_whole = False  # the tour began after the latest change that may have been missed
        self.is_complete = False  # such a tour has ended since then

    def stop(self) -> None:
        """Follow no longer. Idempotent."""
        self._changes.stop()
        self._is_following = self.is_complete = False

    async def catch_up(self, records_max: int | None = None, *, tour_records: int = 0) -> None:
        """Read the changes before the call; if some may have been missed, tour the ledgers for them.

        Args:
            records_max: how many records of a tour are read at most; None: until it is complete.
            tour_records: how many are read if nothing was missed.

        Raises:
            MetadataError: the store failed; the next call goes on.
        """
        if not self._is_following:
            await self._changes.start()
            self._is_following = True
            self._on_missed()
        await self._store.sync(paths.LEDGERS)
        await self._read_changed()
        end = self.records_read + tour_records
        if not self.is_complete:
            end = NO_LEDGER_BEYOND if records_max is None else self.records_read + records_max
        while self.records_read < end:
            was_complete = self.is_complete
            await self._tour_page()
            if self.is_complete and (not was_complete or self._next_id == 0):
                break
        await self._read_changed()

    def _on_event(self, event: WatchEvent) -> None:
        directory, _, name = event.path.rpartition("/")
        if not name.startswith("L") or directory.count("/") != paths.LEDGERS.count("/") + 2:
            return  # a directory
        if len(self._changed) >= CHANGED_MAX:
            self._changed.clear()
            self._on_missed()
        ledger_id = self._id_at(event.path)
        if ledger_id is not None:
            self._changed[ledger_id] = event.type is EventType.DELETED

    def _on_missed(self) -> None:
        self.is_complete = self._is_whole = False
        self._next_id = 0

    async def _read_changed(self) -> None:
        while self._changed:
            some = dict([self._changed.popitem() for _ in range(min(len(self._changed), READS_PER_STEP))])
            try:
                for ledger_id in [each for each, is_deleted in some.items() if is_deleted]:
                    self._note(ledger_id, None)
                await self._read([each for each, is_deleted in some.items() if not is_deleted])
            except BaseException:
                self._changed = some | self._changed
                raise

    async def _tour_page(self) -> None:
        """Compare the next page of ledgers with the index."""
        first = self._next_id
        if first == 0:
            self._is_whole = True
        directory = await self._directory_from(first // LEDGERS_PER_DIRECTORY)
        if directory is None:
            self._forget(first, NO_LEDGER_BEYOND, ())
            if self._next_id == first:
                self._next_id, self.is_complete = 0, self._is_whole
            return
        begin, end = directory * LEDGERS_PER_DIRECTORY, (directory + 1) * LEDGERS_PER_DIRECTORY
        path, start = paths.ledger_directory(directory), paths.last_part(paths.ledger(max(first, begin)))
        ids, is_last = await self._page(path, start)
        end = end if is_last else ids[-1] + 1
        self._forget(first, end, ids)
        await self._read(ids)
        self._read_since_pause += len(ids) + 1  # the list takes a read, too
        if self._read_since_pause >= READS_PER_STEP:
            self._read_since_pause = 0
            await asyncio.sleep(TOUR_PAUSE_SECONDS)
        if self._next_id == first:  # nothing was missed meanwhile
            self._next_id = end

    async def _page(self, path: str, start: str) -> tuple[list[int], bool]:
        """Return ids of a directory, from a name on, and whether they are its last ones; else there is at least one."""
        while True:
            try:
                names = await self._store.children_from(path, start)
            except NoNodeError:
                return [], True  # deleted meanwhile
            found = [self._id_at(f"{path}/{name}") for name in names]
            ids, is_last = [each for each in found if each is not None], len(names) < CHILDREN_PAGE_MAX
            if ids or is_last:
                return ids, is_last
            start = names[-1] + "\0"

    def _id_at(self, path: str) -> int | None:
        """Return the id of the ledger at a path; None if the node there is none of ours, which is logged."""
        ledger_id = paths.ledger_id_at(path)
        if ledger_id is None:
            quiet.warning("no ledger", "%s among the ledgers is no ledger's node: audits pass over it", path)
        return ledger_id

    async def _directory_from(self, number: int) -> int | None:
        """Return the first directory of ledgers whose number is not below ``number``; None if there is none."""
        high, middle = divmod(number, LEDGERS_PER_DIRECTORY)
        try:
            highs = [int(name) for name in await self._store.children(paths.LEDGERS) if _is_number(name)]
        except NoNodeError:
            return None
        for each in sorted(highs):
            if each >= high:
                path = paths.ledger_directory(each * LEDGERS_PER_DIRECTORY).rpartition("/")[0]
                with contextlib.suppress(NoNodeError):
                    start = f"{middle:04d}" if each == high else ""
                    while names := await self._store.children_from(path, start, 1):
                        if _is_number(names[0]) and len(names[0]) == DIGITS_OF_DIRECTORY:
                            return each * LEDGERS_PER_DIRECTORY + int(names[0])
                        start = names[0] + "\0"  # a node of others
        return None

    def _forget(self, first_id: int, end_id: int, listed: Sequence[int]) -> None:
        for ledger_id in {*self.index.ids_from(first_id, end_id), *self.unreadable}.difference(listed):
            if first_id <= ledger_id < end_id:
                self._note(ledger_id, None)

    async def _read(self, ledger_ids: Sequence[int]) -> None:
        def on_unreadable(path: str, error: RecordError) -> None:
            unreadable.add(paths.ledger_id_of(path))
            if paths.ledger_id_of(path) not in self.unreadable:
                log.error("%s is left out of audits: %s", path, error)

        unreadable: set[int] = set()
        wanted = [paths.ledger(ledger_id) for ledger_id in ledger_ids]
        records = await read_records(self._store, wanted, LedgerMetadata, self._gate, on_unreadable)
        self.records_read += len(ledger_ids)
        for ledger_id, record in zip(ledger_ids, records, strict=True):
            self._note(ledger_id, None if record is None else placement_of(record))
        self.unreadable |= unreadable

    def _note(self, ledger_id: int, placement: LedgerPlacement | None) -> None:
        self.unreadable.discard(ledger_id)
        before = self.index.remove(ledger_id) if placement is None else self.index.put(placement)
        if before != placement:
            self._on_change(before, placement)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
