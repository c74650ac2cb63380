"""The ledger driver when callers leave, clients close and records change during an operation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.actors.errors import NoSuchLedgerError, QuorumLostError, TooManyAddsError
from heliograph.actors.ledger.driver import LedgerClientConfig, context
from heliograph.actors.ledger.driver.context import BookieContext
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.base.errors import AlreadyClosedError, HeliographError, NotPermittedError
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import ConnectionLossError, NodeExistsError, RecordError, ValueTooLargeError
from heliograph.metadata.model import LedgerMetadata, Segment
from heliograph.metadata.paths import ledger as ledger_path
from heliograph.metadata.paths import underreplicated
from heliograph.metadata.recipes.repair_tasks import mark_underreplicated
from heliograph.metadata.store import Stat
from tests.cluster.support.ledger_cluster import (
    LedgerCluster,
    add,
    ledger_cluster,
    new_ledger,
    one_ledger,
    quick,
    until,
)


def asked(cluster: LedgerCluster, *ops: BookieOp) -> int:
    """Return how many requests of these kinds all bookies got."""
    return sum(request.op in ops for bookie in cluster.bookies.values() for request in bookie.requests)


async def test_a_recovery_whose_client_closes_says_so() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 3)
        client = await cluster.client()
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.READ_LAC)
        recovering = asyncio.create_task(client.recover(writer.ledger_id))
        await until(lambda: asked(cluster, BookieOp.READ_LAC) == 3)
        await client.close()
        with pytest.raises(AlreadyClosedError):
            await recovering


async def test_a_repair_that_nobody_waits_for_stops() -> None:
    async with ledger_cluster(bookies=4) as cluster:
        client = await cluster.client(replace(quick(), request_timeout_ms=1_500))
        writer = await new_ledger(await cluster.client())
        await add(writer, 5)
        closed = await writer.close()
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.READ_BATCH)
        leaving = closed.last_segment.bookies[0]
        repairing = asyncio.create_task(client.repair(writer.ledger_id, [], away_from=[leaving]))
        await until(lambda: asked(cluster, BookieOp.READ_BATCH) == 1)
        repairing.cancel()
        await asyncio.gather(repairing, return_exceptions=True)
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.LIST_ENTRIES)
        with pytest.raises(QuorumLostError):  # sent after the requests of the repair, so answered after them
            await client.check(writer.ledger_id)
        assert asked(cluster, BookieOp.READ_BATCH) == 1


async def test_nothing_connects_after_the_client_closed() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 3)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        await client.close()
        before = asked(cluster, BookieOp.HELLO)
        with pytest.raises(AlreadyClosedError):
            await reader.read(0, 0)
        with pytest.raises(AlreadyClosedError):
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        assert asked(cluster, BookieOp.HELLO) == before


async def test_a_recovery_does_not_go_on_at_another_bookie_after_the_client_closed() -> None:
    async with ledger_cluster(bookies=4) as cluster:
        first = await cluster.client(quick(explicit_lac_interval_ms=0))  # the last entry is added again
        writer = await new_ledger(first)
        members = writer.metadata.last_segment.bookies
        spare = next(name for name in cluster.bookies if name not in members)
        await add(writer, 3)
        client = await cluster.client()
        for name in members:
            cluster.bookies[name].stalled_ops.add(BookieOp.ADD)
        recovering = asyncio.create_task(client.recover(writer.ledger_id))
        adds = asked(cluster, BookieOp.ADD)
        await until(lambda: asked(cluster, BookieOp.ADD) > adds)
        await client.close()
        await asyncio.gather(recovering, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert cluster.bookies[spare].requests == []


async def test_a_failed_writer_is_closed_while_its_client_closes() -> None:
    async with one_ledger() as (cluster, client, writer):
        for bookie in cluster.bookies.values():
            bookie.refusals[BookieOp.ADD] = Status.FENCED
        await asyncio.gather(writer.add(b"x"), return_exceptions=True)
        client.statistics()  # ended writers are forgotten
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(AlreadyClosedError):
            async with asyncio.timeout(60):
                await closing


async def test_a_reader_finds_moved_copies_when_those_it_knew_are_damaged_or_gone() -> None:
    async with one_ledger(4) as (cluster, client, writer):
        await add(writer, 5)
        closed = await writer.close()
        reader = await client.open(writer.ledger_id)
        moved, *others = closed.last_segment.bookies
        assert (await client.repair(writer.ledger_id, [], away_from=[moved])).complete
        cluster.bookies[moved].ledgers[writer.ledger_id].entries.clear()
        for name in others:
            cluster.bookies[name].damaged_entries.add(2)
        assert [entry.payload for entry in await reader.read(2, 2)] == [b"entry 2"]


async def test_a_reader_of_a_deleted_ledger_says_so() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 5)
        tailing = await client.open(writer.ledger_id)
        await writer.close()
        reader = await client.open(writer.ledger_id)
        await client.delete(writer.ledger_id)
        for bookie in cluster.bookies.values():
            bookie.ledgers.clear()
        with pytest.raises(NoSuchLedgerError, match="deleted"):
            await reader.read(0, 4)
        with pytest.raises(NoSuchLedgerError):
            await tailing.read_last_add_confirmed()


class BrokenPromise:
    """An effect runner that raises an unexpected error."""

    rests_until = 0

    def tick(self) -> bool:
        raise AssertionError("a promise of our own code is broken")

    def abort(self, error: HeliographError) -> None:
        pass


async def test_a_core_that_raises_does_not_stop_the_clock_of_all_others_in_silence() -> None:
    broken: list[BaseException] = []
    world = BookieContext(lambda bookie_id: None, LedgerClientConfig(tick_ms=1), broken.append)
    world.ticking[BrokenPromise()] = None
    world.spawn(world.keep_time())
    await until(lambda: bool(broken))  # by default the process ends, and Ray restarts it
    await world.close("the test is over")


class Once:
    """An effect runner that waits for one look at the clock."""

    def __init__(self) -> None:
        self.rests_until = 0
        self.ticks = 0

    def tick(self) -> bool:
        self.ticks += 1
        return False

    def abort(self, error: HeliographError) -> None:
        pass


async def test_a_runner_that_rests_is_not_called() -> None:
    world = BookieContext(lambda bookie_id: None, LedgerClientConfig(tick_ms=1))
    world.spawn(world.keep_time())
    resting, awake = Once(), Once()
    resting.rests_until = world.now() + 3_600_000
    for waiting in (resting, awake):
        world.begin_ticking(waiting)
    await until(lambda: awake.ticks == 1)
    assert (resting.ticks, [*world.ticking]) == (0, [resting])
    resting.rests_until = 0
    await until(lambda: resting.ticks == 1)
    await world.close("the test is over")


async def test_the_clock_stands_while_nothing_waits_and_goes_on_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "IDLE_SECONDS", 3_600.0)
    world = BookieContext(lambda bookie_id: None, LedgerClientConfig(tick_ms=1))
    world.spawn(world.keep_time())
    for waiting in (Once(), Once()):
        world.begin_ticking(waiting)
        await until(lambda waiting=waiting: waiting.ticks == 1)  # type: ignore[misc]
        await until(lambda: not world._has_ticking.is_set())  # it rests
    await world.close("the test is over")


async def rewritten_by_a_newer_version(cluster: LedgerCluster, ledger_id: int) -> None:
    value, _ = await cluster.store.get(ledger_path(ledger_id))
    assert value is not None
    await cluster.store.set(ledger_path(ledger_id), value.replace(b" v1 ", b" v2 ", 1), -1)


async def test_a_writer_meets_a_record_that_a_newer_version_wrote() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 3)
        await rewritten_by_a_newer_version(cluster, writer.ledger_id)
        with pytest.raises(RecordError, match="upgrade"):
            await writer.close()


async def test_a_record_that_has_grown_too_large_ends_its_writer_at_once() -> None:
    async with one_ledger(5) as (cluster, client, writer):
        await add(writer, 3)

        async def refuse(path: str, value: bytes | None, version: int = -1) -> Stat:
            raise ValueTooLargeError("a record of so many segments is too large")

        client._context.store.set = refuse  # type: ignore[method-assign]
        for name in writer.metadata.last_segment.bookies[:2]:
            cluster.bookies[name].refusals[BookieOp.ADD] = Status.STORAGE_ERROR
        with pytest.raises(ValueTooLargeError):
            await writer.add(b"x")
        assert not writer.is_open


async def test_a_store_that_does_not_permit_it_says_so_at_once() -> None:
    async with one_ledger() as (_, client, writer):
        await add(writer, 3)

        async def refuse(path: str, *arguments: object) -> Stat:
            raise NotPermittedError("the ACL does not allow it")

        client._context.store.set = refuse  # type: ignore[method-assign, assignment]
        client._context.store.delete = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(NotPermittedError):
            await writer.close()
        with pytest.raises(NotPermittedError):
            await client.delete(writer.ledger_id)


async def test_a_create_whose_reply_is_lost_is_recognised_by_its_token() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        store = client._context.store
        lost: list[str] = []
        create = store.create

        async def lose_one(path: str, value: bytes = b"", **options: bool) -> object:
            created = await create(path, value, **options)
            if b"LedgerMetadata" in value and not lost:
                lost.append(path)
                raise ConnectionLossError("the reply was lost")
            return created

        store.create = lose_one  # type: ignore[method-assign, assignment]
        writer = await new_ledger(client)
        assert lost == [ledger_path(writer.ledger_id)]
        await add(writer, 3)
        assert (await writer.close()).last_entry_id == 2


async def test_an_id_that_is_somebody_elses_is_left_alone() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        store = client._context.store
        create = store.create
        theirs = LedgerMetadata(0, 3, 3, 2, (Segment(0, ("b1", "b2", "b3")),), creator_token="theirs")
        taken: list[str] = []

        async def come_second(path: str, value: bytes = b"", **options: bool) -> object:
            if b"LedgerMetadata" in value and not taken:
                taken.append(path)
                await create(path, encode(theirs), **options)
            return await create(path, value, **options)

        store.create = come_second  # type: ignore[method-assign, assignment]
        writer = await new_ledger(client)
        assert ledger_path(writer.ledger_id) not in taken
        assert writer.metadata.creator_token != "theirs"
        assert decode(LedgerMetadata, (await store.get(taken[0]))[0]) == theirs


async def test_recoveries_of_one_ledger_in_one_process_are_one() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 3)
        client = await cluster.client()
        recovering = [asyncio.create_task(client.recover(writer.ledger_id)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        recovering[0].cancel()  # a cancelled caller does not affect the others
        results = await asyncio.gather(*recovering, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1] == results[2] == (await client.metadata(writer.ledger_id)).record
        assert client.statistics()["ledgers_recovered"] == 1


async def test_what_waits_for_room_is_bounded_by_its_bytes_too() -> None:
    async with ledger_cluster() as cluster:
        config = replace(quick(in_flight_entries_max=1), waiting_bytes_max=100)
        writer = await new_ledger(await cluster.client(config))
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.ADD)
        adds = [writer.add(bytes(60)), writer.add(bytes(60)), writer.add(bytes(40))]
        assert writer.bytes_in_flight == 160
        with pytest.raises(TooManyAddsError):  # I15
            writer.add(b"x")
        writer.abort(AlreadyClosedError("the owner stops"))
        assert [type(e) for e in await asyncio.gather(*adds, return_exceptions=True)] == [AlreadyClosedError] * 3
        assert writer.bytes_in_flight == 0


async def test_every_add_that_was_accepted_has_one_outcome_when_the_client_closes() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client(quick(in_flight_entries_max=2))
        writer = await new_ledger(client)
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.ADD)
        outcomes: list[tuple[int, int, str]] = []

        def on_added(number: int, entry_id: int, error: HeliographError | None) -> None:
            outcomes.append((number, entry_id, type(error).__name__))

        for number in range(5):  # two are sent, three queued
            writer.add_then(b"x", on_added, number)
        await asyncio.sleep(0)
        await client.close()
        assert outcomes == [(number, -1, "AlreadyClosedError") for number in range(5)]
        assert writer.bytes_in_flight == 0  # I15


async def test_a_mark_meets_a_task_that_is_finished_at_that_moment() -> None:
    async with ledger_cluster() as cluster:
        store, path = cluster.store, underreplicated(7)
        await store.create(path, encode(UnderReplicatedLedger(7, ("b1",), marked_ms=1)), parents=True)
        create = store.create

        async def finished_meanwhile(path: str, value: bytes, **options: bool) -> object:
            try:
                return await create(path, value, **options)
            except NodeExistsError:
                await store.delete(path)
                raise

        store.create = finished_meanwhile  # type: ignore[method-assign, assignment]
        await mark_underreplicated(store, 7, ["b2"])
        value, _ = await store.get(path)
        assert decode(UnderReplicatedLedger, value).missing_bookies == ("b2",)
