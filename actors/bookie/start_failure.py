"""The reason why a bookie does not start, in metadata, where ``helio status`` finds it while no process serves.

A bookie whose directory is dead, unreadable or not its own is started again and again, with the pauses of its process
(``cluster/logs/start_history.py``), so that it serves soon after its disk is back, and no other part waits for it.
"""

from __future__ import annotations

import contextlib
import socket

from heliograph.actors.errors import BookieError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import BookieStartFailure
from heliograph.metadata.errors import MetadataError, NoNodeError, RecordError
from heliograph.metadata.parents import children_if_any
from heliograph.metadata.store import MetadataStore

_REASON_CHARACTERS_MAX = 2_000


async def last_failure(store: MetadataStore, bookie_id: str) -> BookieStartFailure | None:
    """Return the failure of the latest start, or None if that succeeded.

    Raises:
        MetadataError: the store did not answer.
    """
    try:
        return codec.decode(BookieStartFailure, (await store.get(paths.bookie_start_failure(bookie_id)))[0])
    except (NoNodeError, RecordError):
        return None


async def note_failure(
    store: MetadataStore, bookie_id: str, error: BookieError, before: BookieStartFailure | None, now_ms: int
) -> str:
    """Record a failed start, and return its reason with what to do in view of the other bookies.

    Errors of the store are ignored: the caller raises the reason anyway.
    """
    reason = f"on node {socket.gethostname()}: {error.what}"[:_REASON_CHARACTERS_MAX]
    failures = before.failures + 1 if before is not None else 1
    failure = BookieStartFailure(bookie_id, type(error).__name__, reason, failures, now_ms, error.way_out)
    path, value = paths.bookie_start_failure(bookie_id), codec.encode(failure)
    others: list[BookieStartFailure] = []
    with contextlib.suppress(MetadataError):
        if await store.exists(path) is None:
            await store.create(path, value, parents=True)
        else:
            await store.set(path, value)
        others = await all_failures(store)
    return failure.explain(others)


async def all_failures(store: MetadataStore) -> list[BookieStartFailure]:
    """Return the failures of all bookies whose latest start failed.

    Raises:
        MetadataError: the store did not answer.
    """
    found = [await last_failure(store, name) for name in await children_if_any(store, paths.BOOKIES_FAILED)]
    return [failure for failure in found if failure is not None]


async def clear_failure(store: MetadataStore, bookie_id: str) -> None:
    """Forget the failures after a start, and a permission to start on empty directories, which is used up."""
    for path in (paths.bookie_start_failure(bookie_id), paths.bookie_replacement(bookie_id)):
        with contextlib.suppress(MetadataError):
            if await store.exists(path) is not None:
                await store.delete(path)
