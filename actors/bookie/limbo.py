"""The way out of limbo: a ledger of which everything that should be here is here again may say "no" once more.

Only a CLOSED ledger leaves: its last entry is decided for good (I5), so no "no" of ours can cut it any more, and what
this bookie should hold follows from its metadata. That must be in the index, so it is durable. What is missing is
brought back by a replication worker, for whom a task is left in metadata. A ledger that is not CLOSED waits until its
writer closes it or somebody recovers it. The fence stays in any case (I4).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from actors.bookie.index import merge_runs
from actors.bookie.storage import ENTRY_ID_MAX, Storage
from metadata import codec, paths
from metadata.errors import NodeExistsError, NoNodeError
from metadata.model import LedgerMetadata, UnderReplicatedLedger
from metadata.store import MetadataStore

LEDGERS_PER_ROUND_MAX = 1_000
REPORT_SECONDS = 600.0  # between two tasks for one ledger

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

    async def round(self, store: MetadataStore, now: float) -> int:
        """Look at some, the ones looked at last time coming last; returns how many left limbo.

        The change is durable with the next checkpoint; until then a crash puts them back, which is safe.

        Args:
            now: seconds of a monotonic clock.

        Raises:
            MetadataError: the store could not be asked, or a record is damaged.
            BookieStorageError: the index cannot be read.
        """
        ledgers = self._storage.ledgers
        cleared = 0
        for ledger_id in ledgers.next_in_limbo(LEDGERS_PER_ROUND_MAX):
            try:
                value, _ = await store.get(paths.ledger(ledger_id))
            except NoNodeError:
                self._reported.pop(ledger_id, None)
                continue  # garbage collection sees to it
            ledger = codec.decode(LedgerMetadata, value)
            if not ledger.is_closed or not owed(ledger, self._bookie_id):
                continue
            loop = asyncio.get_running_loop()
            spans = self._storage.spans_on_disk
            if await loop.run_in_executor(self._thread, _is_complete, spans, ledger, self._bookie_id):
                ledgers.leave_limbo(ledger_id)  # I6: nothing that it should have is missing
                self._reported.pop(ledger_id, None)
                cleared += 1
            elif now - self._reported.get(ledger_id, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported[ledger_id] = now
                await self._report(store, ledger_id)
        return cleared

    async def _report(self, store: MetadataStore, ledger_id: int) -> None:
        """Leave a task for the replication workers, unless there is one that will do."""
        task = UnderReplicatedLedger(ledger_id, (self._bookie_id,), time.time_ns() // 1_000_000)
        try:
            await store.create(paths.underreplicated(ledger_id), codec.encode(task), parents=True)
        except NodeExistsError:
            return  # if it is about another bookie, ours has its turn when that is done
        _log.info("ledger %d is in limbo and misses entries here: it is marked for repair", ledger_id)


def _is_complete(
    spans_on_disk: Callable[[int, int, int], list[tuple[int, int]]], ledger: LedgerMetadata, bookie_id: str
) -> bool:
    spans = merge_runs(spans_on_disk(ledger.ledger_id, 0, ENTRY_ID_MAX))
    return all(_has_all(spans, *part) for part in owed(ledger, bookie_id))


def owed(ledger: LedgerMetadata, bookie_id: str) -> list[tuple[int, int, int, int, int]]:
    """What a CLOSED ledger's bookie should hold: first and last entry of a segment, its place, E and Qw, for each.

    Entry n belongs on the places (n + i) mod E, i in 0..Qw-1.
    """
    assert ledger.is_closed, "only then is the last entry known"
    ends = [segment.first_entry_id - 1 for segment in ledger.segments[1:]] + [ledger.last_entry_id]
    return [
        (
            segment.first_entry_id,
            min(end, ledger.last_entry_id),
            segment.bookies.index(bookie_id),
            ledger.ensemble_size,
            ledger.write_quorum,
        )
        for segment, end in zip(ledger.segments, ends, strict=True)
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
