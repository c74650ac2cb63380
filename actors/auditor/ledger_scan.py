"""Reading the metadata of every ledger there is, a bounded number of reads at a time."""

from __future__ import annotations

import asyncio

from metadata import paths
from metadata.codec import decode
from metadata.errors import NoNodeError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore


async def scan_ledgers(store: MetadataStore, reads_at_once_max: int) -> list[LedgerMetadata]:
    """Metadata of all ledgers, by id; ledgers created or deleted meanwhile may or may not be among them.

    Raises:
        MetadataError: the scan is incomplete; nothing may be concluded from it.
    """
    gate = asyncio.Semaphore(reads_at_once_max)
    leaves = [paths.LEDGERS]
    for _ in range(3):  # high part, middle part, ledger
        below = await asyncio.gather(*(_children(store, path, gate) for path in leaves))
        leaves = [path for group in below for path in group]
    found = await asyncio.gather(*(_read(store, path, gate) for path in leaves))
    return sorted((ledger for ledger in found if ledger is not None), key=lambda ledger: ledger.ledger_id)


async def _children(store: MetadataStore, path: str, gate: asyncio.Semaphore) -> list[str]:
    async with gate:
        try:
            return [f"{path}/{name}" for name in await store.children(path)]
        except NoNodeError:
            return []


async def _read(store: MetadataStore, path: str, gate: asyncio.Semaphore) -> LedgerMetadata | None:
    async with gate:
        try:
            value, _ = await store.get(path)
        except NoNodeError:
            return None
    return decode(LedgerMetadata, value)
