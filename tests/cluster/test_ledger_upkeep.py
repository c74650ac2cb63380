"""What keeps ledgers whole without anybody asking: holes found after a crash, bookies emptied, bad ones avoided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from actors.errors import NotEnoughBookiesError
from actors.ledger.driver import LedgerClient, LedgerWriter
from actors.ledger.limits import QuarantineLimits, ReaderLimits
from actors.ledger.placement import Randomness
from actors.wire.messages import Op, Status
from heliograph.errors import InvalidConfigError
from metadata.codec import decode
from metadata.errors import NoNodeError
from metadata.model import BookieRegistration, UnderReplicatedLedger
from metadata.paths import underreplicated
from tests.cluster.ledger_cluster import LedgerCluster, ledger_cluster, quick, until

Scenario = Callable[[LedgerCluster], Awaitable[None]]


def run(scenario: Scenario, bookies: int = 3) -> None:
    async def body() -> None:
        async with ledger_cluster(bookies) as cluster:
            await scenario(cluster)

    asyncio.run(body())


async def new_ledger(client: LedgerClient) -> LedgerWriter:
    return await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)


async def add(writer: LedgerWriter, count: int) -> None:
    await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(count)])


async def marked(cluster: LedgerCluster, ledger_id: int) -> tuple[str, ...]:
    try:
        value, _ = await cluster.store.get(underreplicated(ledger_id))
    except NoNodeError:
        return ()
    return decode(UnderReplicatedLedger, value).missing_bookies


async def crashed_writer(cluster: LedgerCluster) -> int:
    """A ledger of 40 entries: b3 has half of them and its writer is gone."""
    client = await cluster.client()
    writer = await new_ledger(client)
    await add(writer, 20)
    await until(lambda: len(cluster.bookies["b3"].ledgers[writer.ledger_id].entries) == 20)
    cluster.bookies["b3"].stalled_ops.add(Op.ADD)
    for n in range(20):  # one by one, so that bookies learn a LAC beyond which alone the recovery writes
        await writer.add(b"entry %d" % n)
    await client.close()
    cluster.bookies["b3"].stalled_ops.clear()
    return writer.ledger_id


def test_holes_of_a_crashed_writer_are_found_after_the_recovery() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await crashed_writer(cluster)
        client = await cluster.client()
        closed = await client.recover(ledger_id)
        assert closed.last_entry_id == 39

        async def is_marked() -> bool:
            return await marked(cluster, ledger_id) == ("b3",)

        await until(is_marked)
        assert client.statistics()["bookies_with_holes"] == 1
        await until(lambda: client.statistics()["hole_searches_waiting"] == 0)
        assert await client.repair(ledger_id, ["b3"])
        assert len(cluster.bookies["b3"].ledgers[ledger_id].entries) == 40

    run(scenario)


def test_a_silent_bookie_is_asked_again_for_its_holes() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await crashed_writer(cluster)
        cluster.bookies["b3"].refusals[Op.LIST_ENTRIES] = Status.STORAGE_ERROR
        client = await cluster.client()
        await client.recover(ledger_id)
        asked = cluster.bookies["b3"].requests
        await until(lambda: sum(request.op is Op.LIST_ENTRIES for request in asked) >= 2)
        assert await marked(cluster, ledger_id) == ()  # silence is no hole
        cluster.bookies["b3"].refusals.clear()

        async def is_marked() -> bool:
            return await marked(cluster, ledger_id) == ("b3",)

        await until(is_marked)

    run(scenario)


def test_a_recovered_ledger_without_holes_leaves_no_task() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_ledger(await cluster.client())
        await add(writer, 20)
        await until(lambda: writer.core.entries_held == 0)
        client = await cluster.client(replace(quick(), hole_search_delay_ms=300))
        await client.recover(writer.ledger_id)
        assert client.statistics()["hole_searches_waiting"] == 1
        await until(lambda: client.statistics()["hole_searches_waiting"] == 0)
        assert await marked(cluster, writer.ledger_id) == ()

    run(scenario)


def test_emptying_a_bookie_that_lives() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        writer = await new_ledger(client)
        await add(writer, 300)
        leaving = writer.metadata.last_segment.bookies[1]
        assert not await client.repair(writer.ledger_id, [], away_from=[leaving])  # still being written
        await writer.close()
        for name in writer.metadata.last_segment.bookies:
            if name != leaving:
                cluster.bookies[name].refusals[Op.READ_BATCH] = Status.STORAGE_ERROR  # it is the only source left
        assert await client.repair(writer.ledger_id, [], away_from=[leaving])
        record = (await client.metadata(writer.ledger_id)).record
        assert leaving not in record.last_segment.bookies
        for name in record.last_segment.bookies:  # I10
            assert len(cluster.bookies[name].ledgers[writer.ledger_id].entries) == 300
        assert await client.repair(writer.ledger_id, [], away_from=[leaving])
        assert client.statistics()["entries_repaired"] == 300

    run(scenario, bookies=4)


def test_a_bookie_cannot_be_emptied_into_nothing() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        writer = await new_ledger(client)
        await add(writer, 3)
        closed = await writer.close()
        spare = next(name for name in cluster.bookies if name not in closed.last_segment.bookies)
        leaving = [closed.last_segment.bookies[0], spare]  # the spare is to be emptied as well
        assert not await client.repair(writer.ledger_id, [], away_from=leaving)
        assert (await client.metadata(writer.ledger_id)).record == closed

    run(scenario, bookies=4)


def test_a_bookie_that_fails_again_and_again_gets_no_new_ledgers() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        config = replace(quick(), quarantine=QuarantineLimits(pause_ms=0, failures=1, quarantine_ms=60_000))
        client = await cluster.client(config)
        writer = await new_ledger(client)
        bad = writer.metadata.last_segment.bookies[0]
        cluster.bookies[bad].refusals[Op.ADD] = Status.STORAGE_ERROR
        await add(writer, 1)
        await until(lambda: bad not in writer.metadata.last_segment.bookies)
        for _ in range(20):
            assert bad not in (await new_ledger(client)).metadata.last_segment.bookies
        with pytest.raises(NotEnoughBookiesError):
            await client.create(ensemble_size=5, write_quorum=3, ack_quorum=2)
        all_four = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        assert bad in all_four.metadata.last_segment.bookies  # there is no other way

    run(scenario, bookies=4)


class FromTheEnd:
    """A user's own policy."""

    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, randomness: Randomness
    ) -> list[str]:
        return [candidate.bookie_id for candidate in candidates[-size:]]

    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        randomness: Randomness,
    ) -> str | None:
        return candidates[-1].bookie_id if candidates else None


class NeedsArguments(FromTheEnd):
    def __init__(self, zone: str) -> None:
        self.zone = zone


def test_a_placement_class_of_the_users() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client(replace(quick(), placement=f"{__name__}.FromTheEnd"))
        writer = await new_ledger(client)
        assert writer.metadata.last_segment.bookies == ("b3", "b4", "b5")
        await cluster.bookies["b4"].stop()
        await add(writer, 10)
        await until(lambda: writer.metadata.last_segment.bookies == ("b3", "b2", "b5"))
        for wrong in ("no.such.Policy", f"{__name__}.Missing", f"{__name__}.NeedsArguments"):
            with pytest.raises(InvalidConfigError, match="dotted name") as refused:
                await cluster.client(replace(quick(), placement=wrong))
            assert refused.value.field == "placement"

    run(scenario, bookies=5)


@pytest.mark.parametrize("placement", ["random-weighted", "rack-weighted"])
def test_ledgers_go_where_there_is_room(placement: str) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        await cluster.start_bookie("full", free_bytes=1)
        client = await cluster.client(replace(quick(), placement=placement))
        for _ in range(30):
            assert "full" not in (await new_ledger(client)).metadata.last_segment.bookies

    run(scenario)


def test_a_silent_replica_is_asked_last_from_then_on() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client(replace(quick(), reader=ReaderLimits(speculative_ms=300)))
        writer = await new_ledger(client)
        await add(writer, 20)
        await writer.close()
        for name in ("b1", "b2"):
            cluster.bookies[name].stalled_ops.add(Op.READ_BATCH)
        reader = await client.open(writer.ledger_id)
        for first in range(20):
            assert (await reader.read(first, first))[0].payload == b"entry %d" % first
        reads = {
            name: sum(request.op is Op.READ_BATCH for request in bookie.requests)
            for name, bookie in cluster.bookies.items()
        }
        assert reads["b3"] == 20
        assert reads["b1"] <= 1
        assert reads["b2"] <= 1

    run(scenario)
