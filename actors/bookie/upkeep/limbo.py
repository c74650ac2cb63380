"""The way out of limbo: a ledger leaves limbo once this bookie has all entries that it should have.

Only a CLOSED ledger leaves: its last entry is decided (I5), so an answer "no" cannot shorten it, and its metadata says
which entries belong here. They must be in the index, which makes them durable. Missing entries are copied by a
replication worker, for which a task is left in metadata. The fence stays in any case (I4).

A ledger that is not CLOSED waits for its writer, whose next entry meets the fence, after which the ledger is recovered.
If that does not happen within ``limbo_grace_ms``, the topic is idle while its entries lack a copy. The task then asks
for a recovery, which harms no writer, because this bookie refuses its adds already.

Ledgers that wait for their writer are examined every ``limbo_interval_ms``, so that one that is closed is marked at
once. All others are examined with the rounds of garbage collection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from heliograph.actors.bookie.store.index import merge_runs
from heliograph.actors.bookie.store.storage import ENTRY_ID_MAX, BookieStorage
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.repair_tasks import extend_task
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

LEDGERS_PER_ROUND_MAX = 1_000
LEDGERS_WAITING_MAX = 10_000  # ledgers that wait for their writer, and for copies; others wait for their turn (I15)
REPORT_SECONDS = 60.0  # time between two tasks for one ledger; by then its copies have been flushed

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
        self._grace_seconds = storage.config.limbo_grace_ms / 1000
        self._one_at_a_time = asyncio.Lock()
        # Both: at most LEDGERS_WAITING_MAX (I15)
        self._reported: dict[int, float] = {}  # time of the last task
        self._unclosed_since: dict[int, float] = {}  # time first seen unclosed
        self._examined_to = -1  # ledgers that wait and have greater ids are examined first
        self._not_seen: int | None = None  # ledgers in limbo that no round examined since the start; None: not counted

    @property
    def is_needed(self) -> bool:
        """Whether ``follow`` has something to examine."""
        return bool(self._unclosed_since) or self._not_seen is None or self._not_seen > 0

    async def round(self, store: MetadataStore, now: float) -> int:
        """Examine some ledgers in limbo, in turn; return how many left limbo.

        The change is durable with the next checkpoint. A crash before that puts them back into limbo, which is safe.

        Args:
            now: seconds of a monotonic clock.

        Raises:
            MetadataError: the store did not answer.
            BookieStorageError: the index cannot be read.
        """
        async with self._one_at_a_time:
            return await self._examine(store, self._storage.ledgers.next_in_limbo(LEDGERS_PER_ROUND_MAX), now)

    async def follow(self, store: MetadataStore, now: float) -> int:
        """Examine the ledgers that wait for their writer; return how many left limbo.

        Until each ledger in limbo was examined once after the start, the next ones are examined too. Arguments and
        errors are those of ``round``.
        """
        if self._not_seen is None:
            self._not_seen = self._storage.ledgers.in_limbo()
        if self._not_seen > 0:
            self._not_seen -= LEDGERS_PER_ROUND_MAX
            return await self.round(store, now)
        async with self._one_at_a_time:
            return await self._examine(store, self._next_waiting(LEDGERS_PER_ROUND_MAX), now)

    def _next_waiting(self, count: int) -> list[int]:
        waiting = sorted(self._unclosed_since)
        later = [ledger_id for ledger_id in waiting if ledger_id > self._examined_to]
        chosen = (later or waiting)[:count]
        self._examined_to = chosen[-1] if chosen else -1
        return chosen

    async def _examine(self, store: MetadataStore, ledger_ids: Iterable[int], now: float) -> int:
        ledgers = self._storage.ledgers
        cleared = 0
        for ledger_id in ledger_ids:
            try:
                ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
            except NoNodeError:
                self._forget(ledger_id)
                continue  # garbage collection deletes it
            except RecordError as error:
                log.warning("ledger %d stays in limbo: %s", ledger_id, error)
                continue
            if not ledger.is_closed and self._bookie_id in ledger.last_segment.bookies:
                if self._has_waited(ledger_id, now):
                    await self._report(store, ledger_id, now, is_abandoned=True)
                continue
            if not owed(ledger, self._bookie_id):
                self._forget(ledger_id)
                continue
            if not await self._has_all(ledger):
                await self._report(store, ledger_id, now, is_abandoned=False)
            elif ledger.is_closed:
                ledgers.leave_limbo(ledger_id)  # I6: no entry that it should have is missing
                self._forget(ledger_id)
                cleared += 1
            self._unclosed_since.pop(ledger_id, None)
        return cleared

    def _has_waited(self, ledger_id: int, now: float) -> bool:
        """Return whether the ledger's writer had its time to find out that the ledger is fenced here."""
        if ledger_id not in self._unclosed_since and len(self._unclosed_since) >= LEDGERS_WAITING_MAX:
            return False
        return now - self._unclosed_since.setdefault(ledger_id, now) >= self._grace_seconds

    async def _has_all(self, ledger: LedgerMetadata) -> bool:
        def look() -> bool:
            return is_complete(ledger, self._bookie_id, self._storage.spans_on_disk(ledger.ledger_id, 0, ENTRY_ID_MAX))

        return await asyncio.get_running_loop().run_in_executor(self._thread, look)

    def _forget(self, ledger_id: int) -> None:
        self._reported.pop(ledger_id, None)
        self._unclosed_since.pop(ledger_id, None)

    async def _report(self, store: MetadataStore, ledger_id: int, now: float, *, is_abandoned: bool) -> None:
        """Leave a task for the replication workers, at most every REPORT_SECONDS."""
        reported = self._reported.get(ledger_id)
        if reported is None and len(self._reported) >= LEDGERS_WAITING_MAX:
            return
        if reported is not None and now - reported < REPORT_SECONDS:
            return
        self._reported[ledger_id] = now
        if await extend_task(store, ledger_id, (self._bookie_id,), is_abandoned=is_abandoned):
            log.info("ledger %d is in limbo and misses entries here: marked it for repair", ledger_id)


def is_complete(ledger: LedgerMetadata, bookie_id: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether the stored spans (first and last entry ids) hold all entries that the bookie should have."""
    merged = merge_runs(spans)
    return all(_has_all(merged, *part) for part in owed(ledger, bookie_id))


def owed(ledger: LedgerMetadata, bookie_id: str) -> list[tuple[int, int, int, int, int]]:
    """Return a bookie's expected entries of a ledger: for each segment its first and last entry, the place, E and Qw.

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
