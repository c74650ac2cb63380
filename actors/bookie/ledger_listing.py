"""Which ledgers metadata knows. Any error ends the listing: half a list must never be taken for a whole one (I14)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from metadata import paths
from metadata.errors import NoNodeError, RecordError
from metadata.model import LedgerMetadata, LedgerState
from metadata.store import MetadataStore
from metadata.update_loop import read


async def ledger_ids(store: MetadataStore) -> AsyncIterator[list[int]]:
    """All ledger ids, a group at a time. Ledgers made or deleted meanwhile may or may not be among them.

    Raises:
        MetadataError: the store could not be asked.
    """
    for high in await _children(store, paths.LEDGERS):
        for middle in await _children(store, f"{paths.LEDGERS}/{high}"):
            parent = f"{paths.LEDGERS}/{high}/{middle}"
            yield [paths.ledger_id_of(f"{parent}/{name}") for name in await _children(store, parent)]


async def exists(store: MetadataStore, ledger_id: int) -> bool:
    """Whether metadata has the ledger, by a direct read.

    Raises:
        MetadataError: the store could not be asked.
    """
    try:
        await store.get(paths.ledger(ledger_id))
    except NoNodeError:
        return False
    return True


async def ledgers_on(store: MetadataStore, bookie_id: str) -> AsyncIterator[tuple[int, bool]]:
    """Ledgers with a segment on the bookie, each with whether a recovery may have fenced it there, or will.

    Those of an OPEN ledger's earlier segments were not: a recovery says first that it begins, and goes to the last one.
    A ledger whose record cannot be read is taken for one that has and was.

    Raises:
        MetadataError: the store could not be asked.
    """
    async for group in ledger_ids(store):
        for ledger_id in group:
            try:
                ledger = (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
            except NoNodeError:
                continue  # deleted meanwhile
            except RecordError:  # damaged, or of a newer version
                yield ledger_id, True
                continue
            if any(bookie_id in segment.bookies for segment in ledger.segments):
                is_open = ledger.state is LedgerState.OPEN
                yield ledger_id, not is_open or bookie_id in ledger.last_segment.bookies


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNodeError:
        return []  # removed meanwhile with the last ledger in it, or none was ever made
