"""The mark of a store that was filled from a backup. While it is there, ledgers that the store does not name are kept.

A backup names the ledgers of its own time. Ledgers that were created later are on bookies, and nothing else says that
they are wanted. So garbage collection must not rely on the store until an operator accepts the loss.
"""

from __future__ import annotations

import contextlib

from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.paths import RESTORED
from heliograph.metadata.store import MetadataStore


async def is_restored(store: MetadataStore) -> bool:
    """Return whether the store was restored from a backup that is not accepted.

    Raises:
        MetadataError: the store did not answer.
    """
    return await store.exists(RESTORED) is not None


async def accept(store: MetadataStore) -> bool:
    """Remove the mark. Return whether there was one.

    Raises:
        MetadataError: the store did not answer; the mark may be gone.
    """
    with contextlib.suppress(NoNodeError):
        await store.delete(RESTORED)
        return True
    return False
