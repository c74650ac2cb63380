"""The ledger driver with fake bookies behind real sockets: what its callers rely on, also when bookies die."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.errors import (
    EntryDamagedError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumLostError,
    TooManyAddsError,
)
from heliograph.actors.ledger.driver import LedgerClient, LedgerClientConfig, LedgerWriter
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.base.errors import (
    HeliographError,
    InvalidConfigError,
    InvalidQuorumError,
    MessageTooLargeError,
    TooFewBookiesError,
)
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import decode
from heliograph.metadata.model import LedgerState
from heliograph.metadata.paths import underreplicated
from tests.cluster.support.ledger_cluster import ledger_cluster, new_ledger, one_ledger, quick, until


async def add(writer: LedgerWriter, first: int, count: int) -> list[int]:
    return list(await asyncio.gather(*[writer.add(b"entry %d" % n) for n in range(first, first + count)]))


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    found: list[bytes] = []
    while len(found) <= reader.last_add_confirmed:
        found += [bytes(entry.payload) for entry in await reader.read(len(found), reader.last_add_confirmed)]
    return found


def expected(count: int) -> list[bytes]:
    return [b"entry %d" % n for n in range(count)]


async def test_write_close_and_read() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, properties={"topic": "t"})
        assert await add(writer, 0, 50) == list(range(50))  # I2
        assert (writer.last_add_confirmed, writer.last_add_pushed) == (49, 49)
        closed = await writer.close()
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 49)
        assert closed.length == sum(map(len, expected(50)))
        assert closed.properties == {"topic": "t"}
        other = await cluster.client()
        assert await contents(other, writer.ledger_id) == expected(50)  # I1
        assert await writer.close() == closed
        with pytest.raises(LedgerClosedError):
            writer.add(b"late")


async def test_a_ledger_at_rest_has_no_queues_of_its_own() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        first, second = await new_ledger(client), await new_ledger(client)
        while second.metadata.last_segment != first.metadata.last_segment:  # the order of its bookies is by chance
            second = await new_ledger(client)
        empty = first._outcomes
        assert all(queue is empty for queue in (first._queued, second._outcomes, second._queued))
        assert first.core._pipeline._targets == second.core._pipeline._targets
        assert first.core._schedule is second.core._schedule
        for count in (3, 4):
            await add(first, 0, count)
            await until(lambda: first not in client._context.ticking)  # its LAC is told
            assert first._outcomes is empty
            assert not empty


async def test_callbacks_come_in_order_and_once() -> None:
    async with one_ledger() as (_, _, writer):
        seen: list[tuple[str, int, HeliographError | None]] = []
        for n in range(20):
            writer.add_then(b"x", lambda context, entry_id, error: seen.append((context, entry_id, error)), f"c{n}")
        await until(lambda: len(seen) == 20)
        assert seen == [(f"c{n}", n, None) for n in range(20)]  # I2


async def test_striped_ledger() -> None:
    async with ledger_cluster(bookies=5) as cluster:
        client = await cluster.client()
        writer = await client.create(ensemble_size=5, write_quorum=3, ack_quorum=2)
        await add(writer, 0, 40)
        await writer.close()
        assert await contents(client, writer.ledger_id) == expected(40)
        for bookie in cluster.bookies.values():
            assert len(bookie.ledgers[writer.ledger_id].entries) == 24
        assert await client.check(writer.ledger_id) == ()


async def test_a_bookie_dies_in_the_middle_of_writing() -> None:
    async with one_ledger(4) as (cluster, client, writer):
        adds = [writer.add(b"entry %d" % n) for n in range(100)]
        victim = writer.metadata.last_segment.bookies[1]
        await cluster.bookies[victim].kill()
        adds += [writer.add(b"entry %d" % n) for n in range(100, 300)]
        assert await asyncio.gather(*adds) == list(range(300))
        await until(lambda: victim not in writer.metadata.last_segment.bookies)
        await writer.close()
        assert await contents(client, writer.ledger_id) == expected(300)


async def test_no_spare_goes_on_and_leaves_a_task() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 0, 10)
        victim = cluster.bookies["b2"]
        await victim.kill()
        await add(writer, 10, 10)
        assert len(victim.ledgers[writer.ledger_id].entries) == 10
        await cluster.start_bookie("b4")  # replaces b2 from the next entry on
        await until(lambda: "b4" in writer.metadata.last_segment.bookies)
        await add(writer, 20, 10)
        await writer.close()
        path = underreplicated(writer.ledger_id)

        async def is_marked() -> bool:
            return await cluster.store.exists(path) is not None

        await until(is_marked)
        value, _ = await cluster.store.get(path)
        assert "b2" in decode(UnderReplicatedLedger, value).missing_bookies
        assert await contents(client, writer.ledger_id) == expected(30)


async def test_no_quorum_fails_every_add_once() -> None:
    async with one_ledger() as (cluster, _, writer):
        failures: list[HeliographError] = []
        writer.on_failed = failures.append
        await add(writer, 0, 3)
        for name in ("b1", "b2"):
            await cluster.bookies[name].kill()
        adds = [writer.add(b"x") for _ in range(5)]
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [QuorumLostError] * 5
        assert len(failures) == 1
        assert isinstance(writer.closed_reason, QuorumLostError)
        with pytest.raises(QuorumLostError):
            writer.add(b"x")
        assert (await writer.close()).last_entry_id == 2


async def test_a_second_client_fences_the_writer() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 0, 20)
        other = await cluster.client()
        closed = await other.recover(writer.ledger_id)
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 19)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"zombie")
        assert await contents(other, writer.ledger_id) == expected(20)  # I5: nothing beyond the end
        assert await other.recover(writer.ledger_id) == closed


async def test_recovery_after_a_dead_writer() -> None:
    async with one_ledger() as (cluster, client, writer):
        cluster.bookies["b3"].stalled_ops.add(BookieOp.ADD)
        await add(writer, 0, 10)
        cluster.bookies["b2"].stalled_ops.add(BookieOp.ADD)
        pending = [writer.add(b"entry %d" % n) for n in range(10, 15)]  # these reach b1 only
        await until(lambda: len(cluster.bookies["b1"].ledgers[writer.ledger_id].entries) == 15)
        await client.close()
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.clear()
        other = await cluster.client()
        closed, again = await asyncio.gather(other.recover(writer.ledger_id), other.recover(writer.ledger_id))
        assert closed == again
        assert closed.last_entry_id >= 9
        assert await contents(other, writer.ledger_id) == expected(closed.last_entry_id + 1)
        assert not any(future.done() and future.exception() is None for future in pending)


async def test_recovery_without_enough_bookies_decides_nothing() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 0, 5)
        for name in ("b1", "b2"):
            await cluster.bookies[name].kill()
        other = await cluster.client()
        with pytest.raises(LedgerRecoveryError):
            await other.recover(writer.ledger_id)
        assert (await other.metadata(writer.ledger_id)).record.state is LedgerState.IN_RECOVERY  # I7


async def test_repair_of_a_lost_bookie() -> None:
    async with one_ledger(4) as (cluster, client, writer):
        await add(writer, 0, 600)
        lost = writer.metadata.last_segment.bookies[0]
        await writer.close()
        await cluster.bookies[lost].stop()
        await until(lambda: not client.directory.is_registered(lost))
        assert (await client.repair(writer.ledger_id, [lost])).complete
        record = (await client.metadata(writer.ledger_id)).record
        assert lost not in record.last_segment.bookies  # I10: each of them has all entries
        for bookie_id in record.last_segment.bookies:
            assert len(cluster.bookies[bookie_id].ledgers[writer.ledger_id].entries) == 600
        assert await client.check(writer.ledger_id) == ()
        assert (await client.repair(writer.ledger_id, [lost])).complete
        assert client.statistics()["entries_repaired"] == 600


async def test_repair_fills_holes_and_check_names_them() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 0, 30)
        await writer.close()
        held = cluster.bookies["b2"].ledgers[writer.ledger_id].entries
        for entry_id in (3, 4, 17):
            del held[entry_id]
        assert await client.check(writer.ledger_id) == ("b2",)
        assert (await client.repair(writer.ledger_id, ["b2"])).complete
        assert sorted(held) == list(range(30))
        await cluster.bookies["b1"].kill()
        with pytest.raises(QuorumLostError):
            await client.check(writer.ledger_id)


async def test_a_damaged_copy_is_never_returned() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 0, 5)
        await writer.close()
        for name in ("b1", "b2"):
            cluster.bookies[name].damaged_entries.add(2)
        assert await contents(client, writer.ledger_id) == expected(5)
        assert (await client.repair(writer.ledger_id, ["b1", "b2"])).complete
        assert client.statistics()["entries_repaired"] == 2
        assert not any(bookie.damaged_entries for bookie in cluster.bookies.values())
        for bookie in cluster.bookies.values():
            bookie.damaged_entries.add(2)
        reader = await client.open(writer.ledger_id)
        assert len(await reader.read(0, 4)) == 2
        with pytest.raises(EntryDamagedError):
            await reader.read(2, 2)


async def test_a_silent_replica_does_not_hold_up_a_read() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client(LedgerClientConfig(tick_ms=10, request_timeout_ms=600_000))
        writer = await new_ledger(client)
        await add(writer, 0, 5)
        await writer.close()
        for name in ("b1", "b2"):
            cluster.bookies[name].stalled_ops.add(BookieOp.READ_BATCH)
        async with asyncio.timeout(60):  # well before the request timeout
            assert await contents(client, writer.ledger_id) == expected(5)


async def test_tailing_an_open_ledger() -> None:
    async with one_ledger() as (cluster, _, writer):
        reader = await (await cluster.client()).open(writer.ledger_id)
        assert await reader.read_last_add_confirmed() == -1
        with pytest.raises(NoSuchEntryError):
            await reader.read(0, 0)  # I3
        await add(writer, 0, 10)

        async def is_told() -> bool:
            return await reader.read_last_add_confirmed() == 9

        await until(is_told)  # the explicit LAC tells the last one
        assert [entry.payload for entry in await reader.read(0, 9)] == expected(10)
        await writer.close()
        assert await reader.read_last_add_confirmed() == 9
        assert reader.metadata.is_closed


async def test_back_pressure() -> None:
    async with ledger_cluster() as cluster:
        config = LedgerClientConfig(waiting_adds_max=4, writer=quick(in_flight_entries_max=2).writer, tick_ms=10)
        writer = await new_ledger(await cluster.client(config))
        cluster.bookies["b3"].stalled_ops.add(BookieOp.ADD)
        adds = [writer.add(b"entry %d" % n) for n in range(6)]
        with pytest.raises(TooManyAddsError):  # I15
            writer.add(b"one too many")
        assert await asyncio.gather(*adds[:2]) == [0, 1]
        assert not writer.core.has_room(0)  # confirmed, and still held for b3
        cluster.bookies["b3"].refusals[BookieOp.ADD] = Status.STORAGE_ERROR
        cluster.bookies["b3"].stalled_ops.clear()
        await cluster.bookies["b3"].kill()
        assert await asyncio.gather(*adds) == list(range(6))
        await until(lambda: writer.core.has_room(0))
        assert writer.bytes_in_flight == 0


async def test_bad_input() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        with pytest.raises(InvalidQuorumError):
            await client.create(ensemble_size=3, write_quorum=2, ack_quorum=3)
        with pytest.raises(
            TooFewBookiesError, match="4 copies are required, 3 bookies take entries; no other is known"
        ):
            await client.create(ensemble_size=4, write_quorum=4, ack_quorum=4)
        for call in (client.recover, client.open, client.metadata):
            with pytest.raises(NoSuchLedgerError):
                await call(999)
        writer = await new_ledger(client)
        with pytest.raises(MessageTooLargeError, match="limit"):
            writer.add(bytes((5 << 20) + 1))
        assert await writer.add(b"still fine") == 0
        await client.delete(writer.ledger_id)
        await client.delete(writer.ledger_id)
        with pytest.raises(InvalidConfigError):
            await cluster.client(LedgerClientConfig(placement="no.such.Class"))


async def test_a_big_entry_travels() -> None:
    async with one_ledger() as (_, client, writer):
        payload = bytes(range(256)) * (5 << 12)
        assert await writer.add(payload) == 0
        await writer.close()
        assert await contents(client, writer.ledger_id) == [payload]


async def test_the_cost_of_a_ledger_does_not_grow_with_those_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    has_ended = LedgerWriter.has_ended

    def counted(writer: LedgerWriter) -> bool:
        nonlocal looks
        looks += 1
        return bool(has_ended.fget(writer))  # type: ignore[attr-defined]

    async with ledger_cluster() as cluster:
        client = await cluster.client()
        monkeypatch.setattr(LedgerWriter, "has_ended", property(counted))
        writers = [await new_ledger(client) for _ in range(500)]
        assert looks <= 2 * len(writers)
        for writer in writers[:400]:
            await writer.close()
        assert client.statistics()["writers"] == 100


async def test_ensemble_changes_of_writers_that_ended_are_counted_still() -> None:
    async with ledger_cluster(bookies=4) as cluster:
        client = await cluster.client(quick())
        writer = await new_ledger(client)
        await add(writer, 0, 5)
        await cluster.bookies[writer.metadata.last_segment.bookies[1]].kill()
        await add(writer, 5, 5)
        await until(lambda: client.statistics()["ensemble_changes"] == 1)
        await writer.close()
        found = client.statistics()
        assert (found["writers"], found["ensemble_changes"]) == (0, 1)
