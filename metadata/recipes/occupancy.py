"""The check that no other cluster uses a store: two clusters on one prefix would replace each other's nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from heliograph.base.errors import ConflictError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.paths import BOOKIES_AVAILABLE, BOOKIES_READONLY, BROKERS_AVAILABLE
from heliograph.metadata.store import MetadataStore

POLL_SECONDS = 0.1


async def require_vacant(store: MetadataStore, ours: Collection[str], wait_ms: int) -> None:
    """Wait until no bookies or brokers except ``ours`` are registered.

    Args:
        ours: the ids of this cluster's bookies and brokers that already run.
        wait_ms: the time for sessions of a dead cluster to expire; a little more than their timeout.

    Raises:
        ConflictError: others are still registered, so another cluster runs; names them.
        ConnectionLossError, SessionExpiredError.
    """
    deadline = time.monotonic() + wait_ms / 1000
    while others := await registered(store) - set(ours):
        if time.monotonic() >= deadline:
            raise ConflictError(
                f"another cluster uses this metadata store: {', '.join(sorted(others))} are registered. Give each "
                "cluster its own prefix (chroot), or stop the other one first",
                field="metadata_url",
            )
        await asyncio.sleep(POLL_SECONDS)


async def registered(store: MetadataStore) -> set[str]:
    """Return the ids of all bookies and brokers that are registered.

    Raises:
        MetadataError: the store did not answer.
    """
    found: set[str] = set()
    for parent in (BOOKIES_AVAILABLE, BOOKIES_READONLY, BROKERS_AVAILABLE):
        try:
            found.update(await store.children(parent))
        except NoNodeError:
            continue
    return found
