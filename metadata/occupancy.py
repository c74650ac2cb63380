"""Whether another cluster lives in a store: two clusters on one prefix would take each other's places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from heliograph.errors import ConflictError
from metadata.errors import NoNodeError
from metadata.paths import BOOKIES_AVAILABLE, BOOKIES_READONLY, BROKERS_AVAILABLE
from metadata.store import MetadataStore

POLL_SECONDS = 0.1


async def require_vacant(store: MetadataStore, ours: Collection[str], wait_ms: int) -> None:
    """Return when no bookie or broker is registered but ``ours``.

    Args:
        ours: ids of the bookies and brokers of this cluster that run already.
        wait_ms: for sessions of a dead cluster to expire; a little more than their timeout.

    Raises:
        ConflictError: others are still registered, so they are alive; names them.
        ConnectionLossError, SessionExpiredError.
    """
    deadline = time.monotonic() + wait_ms / 1000
    while others := await _registered(store) - set(ours):
        if time.monotonic() >= deadline:
            raise ConflictError(
                f"another cluster lives in this metadata store: {', '.join(sorted(others))} serve there. Give each "
                "cluster a prefix (chroot) of its own, or stop the other one first",
                field="metadata_url",
            )
        await asyncio.sleep(POLL_SECONDS)


async def _registered(store: MetadataStore) -> set[str]:
    found: set[str] = set()
    for parent in (BOOKIES_AVAILABLE, BOOKIES_READONLY, BROKERS_AVAILABLE):
        try:
            found.update(await store.children(parent))
        except NoNodeError:
            continue
    return found
