"""The way out of limbo: a ledger of which everything that should be here is here again may say "no" once more.

Only a CLOSED ledger leaves: its last entry is decided for good (I5), so no "no" of ours can cut it any more, and what
this bookie should hold follows from its metadata. That must be in the index, so it is durable. Whoever brings back what
is missing is the auditor's repair, which sees the holes in LIST_ENTRIES; here is only looked. A ledger that is not
CLOSED stays in limbo until somebody recovers it. The fence stays in any case (I4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from actors.bookie.index import merge_runs
from actors.bookie.storage import ENTRY_ID_MAX, Storage
from metadata import codec, paths
from metadata.errors import NoNodeError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore

LEDGERS_PER_ROUND_MAX = 1_000


async def clear_limbo(storage: Storage, store: MetadataStore, bookie_id: str, thread: Executor) -> int:
    """Look at ledgers in limbo, the ones looked at last time coming last; returns how many left it.

    The change is durable with the next checkpoint; until then a crash puts them back, which is safe.

    Raises:
        MetadataError: the store could not be asked, or a record is damaged.
        BookieStorageError: the index cannot be read.
    """
    cleared = 0
    for ledger_id in storage.ledgers.next_in_limbo(LEDGERS_PER_ROUND_MAX):
        try:
            value, _ = await store.get(paths.ledger(ledger_id))
        except NoNodeError:
            continue  # garbage collection sees to it
        ledger = codec.decode(LedgerMetadata, value)
        if not ledger.is_closed:
            continue
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(thread, _is_complete, storage.spans_on_disk, ledger, bookie_id):
            storage.ledgers.leave_limbo(ledger_id)  # I6: nothing that it should have is missing
            cleared += 1
    return cleared


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
