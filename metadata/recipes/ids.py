"""Ledger ids: unique over the life of the cluster, increasing, one write each, without conflicts between callers.

Each ``set`` of a node returns a version that no other ``set`` of it returns; that version is the id. A lost reply
skips an id, which does no harm. Versions begin at 0 in a store that was filled from a backup or from another store.
Such a store has a base, written before the cluster starts and never changed, which is added to the version. So each
session reads it once.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.operator_records import LedgerIdBase
from heliograph.metadata.paths import LEDGER_ID_BASE, LEDGER_IDS
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

CONNECTION_LOSSES_MAX = 5  # of one call

_bases: WeakKeyDictionary[MetadataStore, int] = WeakKeyDictionary()  # of the sessions of this process


async def next_ledger_id(store: MetadataStore) -> int:
    """Return an id, at least 1, that no other call returns.

    Raises:
        NoNodeError: the cluster was not initialised.
        ConnectionLossError: the connection was lost more than CONNECTION_LOSSES_MAX times.
        RecordError: the base is damaged.
    """
    for _ in range(CONNECTION_LOSSES_MAX):
        try:
            return await _take_id(store)
        except ConnectionLossError:
            continue
    return await _take_id(store)


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
    return await _base(store) + stat.version


async def _take_id(store: MetadataStore) -> int:
    base = _bases.get(store)
    if base is None:
        base = await _base(store)
    version = (await store.set(LEDGER_IDS, b"")).version
    _bases[store] = base  # only now it is known that the cluster was initialised
    return base + version


async def _base(store: MetadataStore) -> int:
    try:
        return (await read(store, LEDGER_ID_BASE, LedgerIdBase)).record.base
    except NoNodeError:
        return 0
