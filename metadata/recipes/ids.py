"""Ledger ids: unique over the life of the cluster, increasing, one write each, without conflicts between callers.

Each ``set`` of a node returns a version that no other ``set`` of it returns; that version is the id. A lost reply
skips an id, which does no harm.
"""

from __future__ import annotations

from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.paths import LEDGER_IDS
from heliograph.metadata.store import MetadataStore

CONNECTION_LOSSES_MAX = 5  # of one call


async def next_ledger_id(store: MetadataStore) -> int:
    """Return an id, at least 1, that no other call returns.

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
    """Return the last ledger id that was assigned before the call; 0 for none.

    Raises:
        MetadataError: the read failed.
    """
    await store.sync()
    try:
        _, stat = await store.get(LEDGER_IDS)
    except NoNodeError:
        return 0
    return stat.version
