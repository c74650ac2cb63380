"""The way out of limbo: a ledger of which everything that should be here is here again may say "no" once more.

Only a CLOSED ledger leaves: its last entry is decided for good (I5), so no "no" of ours can cut it any more, and what
this bookie should hold follows from its metadata. That must be in the index, so it is durable. What is missing is
brought back by a replication worker, for whom a task is left in metadata. The fence stays in any case (I4).

A ledger that is not CLOSED waits for its writer, who meets our fence with the next entry and then has it recovered. If
nobody did that for long, its topic is perhaps not opened any more, and its entries are a copy short: then the task asks
for a recovery, which takes nothing from a writer that this bookie refuses already.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor

from actors.bookie.index import merge_runs
from actors.bookie.storage import ENTRY_ID_MAX, Storage
from metadata import codec, paths
from metadata.errors import NodeExistsError, NoNodeError, RecordError
from metadata.model import LedgerMetadata, UnderReplicatedLedger
from metadata.store import MetadataStore
from metadata.update_loop import read

LEDGERS_PER_ROUND_MAX = 1_000
REPORT_SECONDS = 600.0  # between two tasks for one ledger
ABANDONED_SECONDS = 600.0  # a ledger whose last segment is here and that nobody closed meanwhile

_log = logging.getLogger(__name__)


class LimboExit:
    """Looks at ledgers in limbo, a bounded number of them in each round."""

    def __init__(self, storage: Storage, thread: Executor) -> None:
        """
        Args:
            thread: where the index is read.
        """
        self._storage = storage
        self._thread = thread
        self._bookie_id = storage.config.bookie_id
        self._reported: dict[int, float] = {}  # when; at most one for each ledger in limbo
        self._unclosed_since: dict[int, float] = {}  # first seen so; at most one for each ledger in limbo

    async def round(self, store: MetadataStore, now: float) -> int:
        """Look at some, the ones looked at last time coming last; returns how many left limbo.

        The change is durable with the next checkpoint; until then a crash puts them back, which is safe.

        Args:
            now: seconds of a monotonic clock.

        Raises:
            MetadataError: the store could not be asked.
            BookieStorageError: the index cannot be read.
        """
        ledgers = self._storage.ledgers
        cleared = 0
        for ledger_id in ledgers.next_in_limbo(LEDGERS_PER_ROUND_MAX):
            try:
                ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
            except NoNodeError:
                self._forget(ledger_id)
                continue  # garbage collection sees to it
            except RecordError as error:
                _log.warning("ledger %d stays in limbo, and the others have their turn: %s", ledger_id, error)
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
                ledgers.leave_limbo(ledger_id)  # I6: nothing that it should have is missing
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
        """Leave a task for the replication workers, now and then, unless there is one that will do."""
        if now - self._reported.get(ledger_id, -REPORT_SECONDS) < REPORT_SECONDS:
            return
        self._reported[ledger_id] = now
        task = UnderReplicatedLedger(ledger_id, (self._bookie_id,), time.time_ns() // 1_000_000, is_abandoned)
        try:
            await store.create(paths.underreplicated(ledger_id), codec.encode(task), parents=True)
        except NodeExistsError:
            return  # if it is about another bookie, ours has its turn when that is done
        _log.info("ledger %d is in limbo and misses entries here: it is marked for repair", ledger_id)


def is_complete(ledger: LedgerMetadata, bookie_id: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the spans (first and last entry ids) that a bookie stores are all that it owes."""
    merged = merge_runs(spans)
    return all(_has_all(merged, *part) for part in owed(ledger, bookie_id))


def owed(ledger: LedgerMetadata, bookie_id: str) -> list[tuple[int, int, int, int, int]]:
    """What a bookie should hold of a ledger: first and last entry of a segment, its place, E and Qw, for each.

    Entry n belongs on the places (n + i) mod E, i in 0..Qw-1. The last segment of a ledger that is not CLOSED is left
    out: its end is not known.
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
    """Whether the spans, which are apart and ascending, cover every entry that belongs on the place."""
    entry_id = first
    for span_first, span_last in [*spans, (last + 1, last + 1)]:
        if span_last < entry_id:
            continue
        gap_end = min(span_first - 1, last)
        # A gap of E entries holds one of every place, so no more than E need to be looked at.
        for missing in range(entry_id, min(gap_end, entry_id + ensemble - 1) + 1):
            if (place - missing) % ensemble < quorum:
                return False
        entry_id = span_last + 1
        if entry_id > last:
            return True
    return True
