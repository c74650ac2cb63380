"""Lists the ledgers in metadata. Any error ends the listing: a partial list must never pass for a full one."""

from __future__ import annotations

from collections.abc import AsyncIterator

from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import LedgerMetadata, LedgerState
from heliograph.metadata.parents import children_if_any
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore


async def ledger_ids(store: MetadataStore) -> AsyncIterator[list[int]]:
    """Yield all ledger ids in groups, without nodes of others. Ledgers created or deleted meanwhile may be included.

    Raises:
        MetadataError: the store did not answer.
    """
    for high in await children_if_any(store, paths.LEDGERS):
        for middle in await children_if_any(store, f"{paths.LEDGERS}/{high}"):
            parent = f"{paths.LEDGERS}/{high}/{middle}"
            found = [paths.ledger_id_at(f"{parent}/{name}") for name in await children_if_any(store, parent)]
            yield [ledger_id for ledger_id in found if ledger_id is not None]


async def ledgers_on(store: MetadataStore, bookie_id: str) -> AsyncIterator[tuple[int, bool]]:
    """Yield the ledgers with a segment on the bookie, each with whether a recovery may have fenced it there.

    A ledger that is OPEN and names the bookie in earlier segments only was not fenced: a recovery first notes in
    metadata that it begins, and it fences the last segment. A ledger whose record cannot be read counts as placed here
    and fenced.

    Raises:
        MetadataError: the store did not answer.
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
