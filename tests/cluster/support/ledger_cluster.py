"""A metadata store, fake bookies and ledger clients in one loop, for tests of the driver."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from heliograph.actors.ledger.driver import LedgerClient, LedgerClientConfig, LedgerWriter
from heliograph.actors.ledger.limits import WriterLimits
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from tests.cluster.support.fake_bookie import FakeBookie

_names = itertools.count()


class LedgerCluster:
    """Bookies by id, and a way to get more clients."""

    def __init__(self, url: str, store: MetadataStore) -> None:
        self.store = store
        self.bookies: dict[str, FakeBookie] = {}
        self._url = url
        self._clients: list[LedgerClient] = []

    async def start_bookie(self, bookie_id: str, rack: str = "default", free_bytes: int = 1 << 30) -> FakeBookie:
        """One more bookie."""
        bookie = self.bookies[bookie_id] = FakeBookie(bookie_id, await connect_store(self._url), rack, free_bytes)
        await bookie.start()
        return bookie

    async def client(self, config: LedgerClientConfig | None = None) -> LedgerClient:
        """One more client, with its own session, that knows of all bookies."""
        client = await LedgerClient.start(await connect_store(self._url), config or quick())
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """End everything."""
        for client in self._clients:
            await client.close()
        for bookie in self.bookies.values():
            await bookie.kill()


@asynccontextmanager
async def ledger_cluster(bookies: int = 3) -> AsyncIterator[LedgerCluster]:
    """A cluster with bookies ``b1`` .. ``bN``."""
    url = f"memory://ledger-cluster-{next(_names)}"
    store = await connect_store(url)
    await initialise(store)
    cluster = LedgerCluster(url, store)
    try:
        for number in range(1, bookies + 1):
            await cluster.start_bookie(f"b{number}")
        yield cluster
    finally:
        await cluster.close()


async def new_ledger(client: LedgerClient) -> LedgerWriter:
    """Three copies, two of them for an acknowledgement."""
    return await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)


@asynccontextmanager
async def one_ledger(bookies: int = 3) -> AsyncIterator[tuple[LedgerCluster, LedgerClient, LedgerWriter]]:
    """A cluster, a client, and the writer of a new ledger of it."""
    async with ledger_cluster(bookies) as cluster:
        client = await cluster.client()
        yield cluster, client, await new_ledger(client)


async def add(writer: LedgerWriter, count: int) -> None:
    """Send ``count`` adds at once, each with its number."""
    await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(count)])


def quick(in_flight_entries_max: int = 10_000, explicit_lac_interval_ms: int = 50) -> LedgerClientConfig:
    """Settings with short pauses. Bookies that live are given the time that they take."""
    writer = WriterLimits(
        in_flight_entries_max=in_flight_entries_max,
        quorum_wait_ms=500,
        degraded_retry_ms=100,
        explicit_lac_interval_ms=explicit_lac_interval_ms,
    )
    return LedgerClientConfig(request_timeout_ms=60_000, tick_ms=10, hole_search_delay_ms=20, writer=writer)


async def until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    """Return when ``holds()``; fail after some seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come true in time")
