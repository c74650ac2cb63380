"""Ledgers for the tests of bookies: in metadata, and on a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.actors.auditor.ledger_scan import scan_records
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.wire.messages import Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, LedgerState, Segment
from heliograph.metadata.store import MetadataStore
from tests.cluster.support.bookie_peer import BookiePeer


async def make_ledger(
    store: MemoryStore, ledger_id: int, *lists: tuple[str, ...], state: LedgerState = LedgerState.OPEN
) -> None:
    segments = tuple(Segment(10 * n, bookies) for n, bookies in enumerate(lists))
    record = LedgerMetadata(ledger_id, 2, 2, 1, segments, state)
    await store.create(paths.ledger(ledger_id), codec.encode(record), parents=True)


async def all_ledgers(store: MetadataStore) -> list[LedgerMetadata]:
    """Return the records of all ledgers, by their ids."""
    return list((await scan_records(store, paths.LEDGERS, 3, LedgerMetadata, 16)).values())


async def registration(store: MemoryStore, path: str) -> BookieRegistration | None:
    try:
        value, _ = await store.get(path)
    except NoNodeError:
        return None
    return codec.decode(BookieRegistration, value)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - it looks at the store
            await asyncio.sleep(0.005)


async def fill(bookie: Bookie, peer: BookiePeer, ledger_bytes: dict[int, int]) -> None:
    """Thirty entries for each ledger, flushed in three parts."""
    for part in range(3):
        adds = [
            peer.add(ledger_id, number, bytes(size // 30))
            for ledger_id, size in ledger_bytes.items()
            for number in range(10 * part, 10 * part + 10)
        ]
        assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
        await bookie.checkpoint()


def stored_bytes(config: BookieConfig) -> int:
    return sum(path.stat().st_size for path in config.data_directories[0].glob("*.log"))
