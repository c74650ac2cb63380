"""The way out of limbo: a ledger leaves limbo once this bookie has all entries that it should have.

Only a CLOSED ledger leaves: its last entry is decided (I5), so an answer "no" cannot shorten it, and its metadata says
which entries belong here. They must be in the index, which makes them durable. Missing entries are copied by a
replication worker, for which a task is left in metadata. The fence stays in any case (I4).

A ledger that is not CLOSED waits for its writer, whose next entry meets the fence, after which the ledger is recovered.
If that does not happen for ABANDONED_SECONDS, the topic may not be in use any more while its entries lack a copy. The
task then asks for a recovery, which harms no writer, because this bookie refuses its adds already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor

from heliograph.actors.bookie.store.index import merge_runs
from heliograph.actors.bookie.store.storage import ENTRY_ID_MAX, BookieStorage
from heliograph.base.clock import wall_ms
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata, UnderReplicatedLedger
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

LEDGERS_PER_ROUND_MAX = 1_000
REPORT_SECONDS = 600.0  # time between two tasks for one ledger
ABANDONED_SECONDS = 600.0  # after which a ledger with its last segment here counts as abandoned unless it was closed

log = logging.getLogger(__name__)


class LimboExit:
    """Examines ledgers in limbo, a bounded number in each round."""

    def __init__(self, storage: BookieStorage, thread: Executor) -> None:
        """
        Args:
            thread: reads the index.
        """
        self._storage = storage
        self._thread = thread
        self._bookie_id = storage.config.bookie_id
        self._reported: dict[int, float] = {}  # time of the last task; at most one for each ledger in limbo
        self._unclosed_since: dict[int, float] = {}  # time first seen unclosed; at most one for each ledger in limbo

    async def round(self, store: MetadataStore, now: float) -> int:
        """Examine some ledgers in limbo, in turn; return how many left limbo.

        The change is durable with the next checkpoint. A crash before that puts them back into limbo, which is safe.

        Args:
            now: seconds of a monotonic clock.

        Raises:
            MetadataError: the store did not answer.
            BookieStorageError: the index cannot be read.
        """
        ledgers = self._storage.ledgers
        cleared = 0
        for ledger_id in ledgers.next_in_limbo(LEDGERS_PER_ROUND_MAX):
            try:
                ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
            except NoNodeError:
                self._forget(ledger_id)
                continue  # garbage collection deletes it
            except RecordError as error:
                log.warning("ledger %d stays in limbo: %s", ledger_id, error)
                continue
            if not ledger.is_closed and self._bookie_id in ledger.last_segment.bookies:
                since = self._unclosed_since.setdefault(ledger_id, now)
                if now - since >= ABANDONED_SECONDS:
                    await self._report(store, ledger_id, now, is_abandoned=True)
                continue
            if not owed(ledger, self._bookie_id):
                continue
            if not await self._has_all(ledger):
                await self._report(store, ledger_id, now, is_abandoned=False)
            elif ledger.is_closed:
                ledgers.leave_limbo(ledger_id)  # I6: no entry that it should have is missing
                self._forget(ledger_id)
                cleared += 1
        return cleared

    async def _has_all(self, ledger: LedgerMetadata) -> bool:
        def look() -> bool:
            return is_complete(ledger, self._bookie_id, self._storage.spans_on_disk(ledger.ledger_id, 0, ENTRY_ID_MAX))

        return await asyncio.get_running_loop().run_in_executor(self._thread, look)

    def _forget(self, ledger_id: int) -> None:
        self._reported.pop(ledger_id, None)
        self._unclosed_since.pop(ledger_id, None)

    async def _report(self, store: MetadataStore, ledger_id: int, now: float, *, is_abandoned: bool) -> None:
        """Leave a task for the replication workers, at most every REPORT_SECONDS, unless there is one already."""
        if now - self._reported.get(ledger_id, -REPORT_SECONDS) < REPORT_SECONDS:
            return
        self._reported[ledger_id] = now
        task = UnderReplicatedLedger(ledger_id, (self._bookie_id,), wall_ms(), is_abandoned)
        try:
            await store.create(paths.underreplicated(ledger_id), codec.encode(task), parents=True)
        except NodeExistsError:
            return  # a task for another bookie is done first
        log.info("ledger %d is in limbo and misses entries here: marked it for repair", ledger_id)


def is_complete(ledger: LedgerMetadata, bookie_id: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether the stored spans (first and last entry ids) hold all entries that the bookie should have."""
    merged = merge_runs(spans)
    return all(_has_all(merged, *part) for part in owed(ledger, bookie_id))


def owed(ledger: LedgerMetadata, bookie_id: str) -> list[tuple[int, int, int, int, int]]:
    """Return what a bookie should hold of a ledger: for each segment its first and last entry, the place, E and Qw.

    Entry n belongs on the places (n + i) mod E for i in 0..Qw-1. The last segment of a ledger that is not CLOSED is
    left out, because its end is not known.
    """
    ends = [segment.first_entry_id - 1 for segment in ledger.segments[1:]]
    if ledger.is_closed:
        ends = [min(end, ledger.last_entry_id) for end in (*ends, ledger.last_entry_id)]
    return [
        (
            segment.first_entry_id,
            end,
            segment.bookies.index(bookie_id),
            ledger.ensemble_size,
            ledger.write_quorum,
        )
        for segment, end in zip(ledger.segments, ends, strict=False)
        if bookie_id in segment.bookies
    ]


def _has_all(spans: Sequence[Sequence[int]], first: int, last: int, place: int, ensemble: int, quorum: int) -> bool:
    """Return whether the spans, disjoint and ascending, cover every entry that belongs on the place."""
    entry_id = first
    for span_first, span_last in [*spans, (last + 1, last + 1)]:
        if span_last < entry_id:
            continue
        gap_end = min(span_first - 1, last)
        # A gap of E entries holds one entry of every place, so E entries are enough to check.
        for missing in range(entry_id, min(gap_end, entry_id + ensemble - 1) + 1):
            if (place - missing) % ensemble < quorum:
                return False
        entry_id = span_last + 1
        if entry_id > last:
            return True
    return True
