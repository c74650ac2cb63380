"""Ledger ids: unique over the life of the cluster, growing, one write each, and no conflicts between takers.

Each ``set`` of a node gives it a version that no other ``set`` of it ever gets; that version is the id. A lost reply
skips an id, which does no harm.
"""

from __future__ import annotations

from metadata.errors import ConnectionLossError, NoNodeError
from metadata.paths import LEDGER_IDS
from metadata.store import MetadataStore

CONNECTION_LOSSES_MAX = 5  # of one call


async def next_ledger_id(store: MetadataStore) -> int:
    """An id, at least 1, that nobody else has got or will get.

    Raises:
        NoNodeError: the cluster was not initialised.
        ConnectionLossError: the connection was lost more than CONNECTION_LOSSES_MAX times.
    """
    for _ in range(CONNECTION_LOSSES_MAX):
        try:
            return (await store.set(LEDGER_IDS, b"")).version
        except ConnectionLossError:
            continue
    return (await store.set(LEDGER_IDS, b"")).version


async def last_ledger_id(store: MetadataStore) -> int:
    """The last ledger id that was given out before the call; 0 for none.

    Raises:
        MetadataError: the store could not be asked.
    """
    await store.sync()
    try:
        _, stat = await store.get(LEDGER_IDS)
    except NoNodeError:
        return 0
    return stat.version
