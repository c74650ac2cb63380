"""The ledger driver on real bookies: sockets, journals, replay."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.errors import LedgerFencedError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.driver.client import LAST_ENTRY_BYTES_MAX
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerState
from heliograph.metadata.recipes.cluster_init import initialise
from tests.cluster.support.ledger_cluster import quick, until

_names = itertools.count()


class RealCluster:
    """Bookies in this process, each with directories of its own."""

    def __init__(self, directory: Path) -> None:
        self.url = f"memory://ledger-bookies-{next(_names)}"
        self.bookies: dict[str, Bookie] = {}
        self._directory = directory

    async def start_bookie(self, bookie_id: str) -> None:
        """Start a bookie, on its earlier directories if it has some."""
        home = self._directory / bookie_id
        for name in ("journal", "data"):
            (home / name).mkdir(parents=True, exist_ok=True)
        config = BookieConfig(bookie_id, (home / "journal",), (home / "data",))
        bookie = self.bookies[bookie_id] = Bookie(config, await connect_store(self.url))
        await bookie.start()

    async def stop_bookie(self, bookie_id: str) -> None:
        """Stop a bookie, and keep its directories."""
        await self.bookies.pop(bookie_id).stop()


@asynccontextmanager
async def real_cluster(directory: Path, count: int) -> AsyncIterator[tuple[RealCluster, LedgerClient]]:
    cluster = RealCluster(directory)
    await initialise(await connect_store(cluster.url))
    for number in range(1, count + 1):
        await cluster.start_bookie(f"b{number}")
    client = await LedgerClient.start(await connect_store(cluster.url), quick())
    try:
        yield cluster, client
    finally:
        await client.close()
        for bookie_id in list(cluster.bookies):
            await cluster.stop_bookie(bookie_id)


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    found: list[bytes] = []
    while len(found) <= reader.last_add_confirmed:
        found += [bytes(entry.payload) for entry in await reader.read(len(found), reader.last_add_confirmed)]
    return found


async def test_a_takeover_reads_the_last_entry_once_more_from_no_bookie(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        small, large = await writer.add(b"first"), await writer.add(b"x" * (LAST_ENTRY_BYTES_MAX + 1))
        other = await LedgerClient.start(await connect_store(cluster.url), quick())
        closed = await other.recover(writer.ledger_id)
        assert (small, large) == (0, closed.last_entry_id)
        assert not other._last_entries, "it is too large to be kept"
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(3)))
        closed = await other.recover(writer.ledger_id)
        reader = await other.open(writer.ledger_id, closed)
        assert not other._last_entries
        for bookie_id in list(cluster.bookies):
            await cluster.stop_bookie(bookie_id)
        [last] = await reader.read(2, 2)
        assert (last.entry_id, last.payload) == (2, b"entry 2")
        await other.close()


async def test_lost_bookie_fence_recovery_and_repair(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 4) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        adds = [writer.add(b"entry %d" % n) for n in range(200)]
        await asyncio.gather(*adds)
        lost = writer.metadata.last_segment.bookies[0]
        await cluster.stop_bookie(lost)
        adds += [writer.add(b"entry %d" % n) for n in range(200, 400)]
        assert await asyncio.gather(*adds) == list(range(400))  # I2

        other = await LedgerClient.start(await connect_store(cluster.url), quick())
        closed = await other.recover(writer.ledger_id)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 399)  # I5
        assert await contents(other, writer.ledger_id) == [b"entry %d" % n for n in range(400)]  # I1

        await until(lambda: not other.directory.is_registered(lost))
        assert (await other.repair(writer.ledger_id, [lost])).complete  # I10
        record = (await other.metadata(writer.ledger_id)).record
        assert all(lost not in segment.bookies for segment in record.segments)
        assert await other.check(writer.ledger_id) == ()
        await other.close()


async def test_a_fenced_ledger_fails_alone_among_those_whose_adds_travel_together(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        fenced = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        other = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(fenced.add(b"first"), other.add(b"0"))

        rival = await LedgerClient.start(await connect_store(cluster.url), quick())
        assert (await rival.recover(fenced.ledger_id)).last_entry_id == 0  # I5
        late, kept = [], []
        for n in range(1, 100):  # each of them in a frame with the other's
            late.append(fenced.add(b"late"))
            kept.append(other.add(b"%d" % n))
        assert await asyncio.gather(*kept) == list(range(1, 100))  # I1 I2
        for outcome in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(outcome, LedgerFencedError)  # I4
        await other.close()
        assert await contents(rival, fenced.ledger_id) == [b"first"]
        assert await contents(rival, other.ledger_id) == [b"%d" % n for n in range(100)]
        await rival.close()


async def test_a_bookie_comes_back_with_what_it_had(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(50)])
        await cluster.stop_bookie("b2")
        await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(50, 100)])
        await cluster.start_bookie("b2")
        await until(lambda: not writer.core.failed_bookies)
        await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(100, 150)])
        await writer.close()
        assert await client.check(writer.ledger_id) == ("b2",)
        assert (await client.repair(writer.ledger_id, ["b2"])).complete
        assert await client.check(writer.ledger_id) == ()
        assert await contents(client, writer.ledger_id) == [b"entry %d" % n for n in range(150)]


async def test_a_fence_outlives_a_restart(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.add(b"one")
        other = await LedgerClient.start(await connect_store(cluster.url), quick())
        closed = await other.recover(writer.ledger_id)
        for bookie_id in list(cluster.bookies):
            await cluster.stop_bookie(bookie_id)
            await cluster.start_bookie(bookie_id)
        outcome = await asyncio.gather(writer.add(b"late"), return_exceptions=True)
        assert isinstance(outcome[0], Exception)  # I4 I5
        assert (await other.metadata(writer.ledger_id)).record == closed
        assert await contents(other, writer.ledger_id) == [b"one"]
        await other.close()


async def test_a_reader_learns_the_lac_that_the_writer_tells(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        other = await LedgerClient.start(await connect_store(cluster.url), quick())
        reader = await other.open(writer.ledger_id)
        await writer.add(b"entry 0")

        async def has_both() -> bool:
            return await reader.read_last_add_confirmed() == 1

        await writer.add(b"entry 1")
        await until(has_both)  # the writer tells the LAC explicitly: no entry follows
        assert [entry.payload for entry in await reader.read(0, 1)] == [b"entry 0", b"entry 1"]  # I3
        await other.close()


async def test_a_striped_ledger_is_read_in_batches(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 5) as (cluster, client):
        writer = await client.create(ensemble_size=5, write_quorum=3, ack_quorum=2)
        assert await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(200)]) == list(range(200))
        await writer.close()
        reader = await client.open(writer.ledger_id)
        found: list[bytes] = []
        requests = 0
        while len(found) < 200:
            found += [bytes(entry.payload) for entry in await reader.read(len(found), 199)]
            requests += 1
        assert found == [b"entry %d" % n for n in range(200)]
        assert requests <= 200 / 8  # several runs of entries in each
        await cluster.stop_bookie("b3")
        assert len(await reader.read(0, 199)) > 1


async def test_emptying_a_bookie(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 4) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(500)])
        leaving = writer.metadata.last_segment.bookies[2]
        await writer.close()
        assert (await client.repair(writer.ledger_id, [], away_from=[leaving])).complete  # I10
        record = (await client.metadata(writer.ledger_id)).record
        assert leaving not in record.last_segment.bookies
        await cluster.stop_bookie(leaving)
        assert await client.check(writer.ledger_id) == ()
        assert await contents(client, writer.ledger_id) == [b"entry %d" % n for n in range(500)]
