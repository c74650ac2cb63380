"""Upkeep of ledgers: holes found after a crash, bookies emptied, bookies that fail avoided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgpack
import pytest

from heliograph.actors.errors import EntryDamagedError
from heliograph.actors.ledger.driver import effect_runner
from heliograph.actors.ledger.effects import Effect, ListEntries, Reply
from heliograph.actors.ledger.limits import QuarantineLimits, ReaderLimits
from heliograph.actors.ledger.placement.placement import Randomness
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.base.errors import InvalidConfigError, StorageFullError, TooFewBookiesError
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.paths import underreplicated
from tests.cluster.support.ledger_cluster import (
    LedgerCluster,
    add,
    ledger_cluster,
    new_ledger,
    one_ledger,
    quick,
    until,
)


async def marked(cluster: LedgerCluster, ledger_id: int) -> tuple[str, ...]:
    try:
        value, _ = await cluster.store.get(underreplicated(ledger_id))
    except NoNodeError:
        return ()
    return decode(UnderReplicatedLedger, value).missing_bookies


async def crashed_writer(cluster: LedgerCluster) -> int:
    """Return a ledger of 40 entries whose writer crashed. b3 has half of them."""
    client = await cluster.client()
    writer = await new_ledger(client)
    await add(writer, 20)
    await until(lambda: len(cluster.bookies["b3"].ledgers[writer.ledger_id].entries) == 20)
    cluster.bookies["b3"].stalled_ops.add(BookieOp.ADD)
    for n in range(20):  # one by one, so that bookies learn a LAC; the recovery writes only after it
        await writer.add(b"entry %d" % n)
    await client.close()
    cluster.bookies["b3"].stalled_ops.clear()
    return writer.ledger_id


async def test_holes_of_a_crashed_writer_are_found_after_the_recovery() -> None:
    async with ledger_cluster() as cluster:
        ledger_id = await crashed_writer(cluster)
        client = await cluster.client()
        closed = await client.recover(ledger_id)
        assert closed.last_entry_id == 39

        async def is_marked() -> bool:
            return await marked(cluster, ledger_id) == ("b3",)

        await until(is_marked)
        assert client.statistics()["bookies_with_holes"] == 1
        await until(lambda: client.statistics()["hole_searches_waiting"] == 0)
        assert (await client.repair(ledger_id, ["b3"])).complete
        assert len(cluster.bookies["b3"].ledgers[ledger_id].entries) == 40


async def test_a_silent_bookie_is_asked_again_for_its_holes() -> None:
    async with ledger_cluster() as cluster:
        ledger_id = await crashed_writer(cluster)
        cluster.bookies["b3"].refusals[BookieOp.LIST_ENTRIES] = Status.STORAGE_ERROR
        client = await cluster.client()
        await client.recover(ledger_id)
        asked = cluster.bookies["b3"].requests
        await until(lambda: sum(request.op is BookieOp.LIST_ENTRIES for request in asked) >= 2)
        assert await marked(cluster, ledger_id) == ()  # a bookie that does not answer has no hole
        cluster.bookies["b3"].refusals.clear()

        async def is_marked() -> bool:
            return await marked(cluster, ledger_id) == ("b3",)

        await until(is_marked)


async def test_a_recovered_ledger_without_holes_leaves_no_task() -> None:
    async with one_ledger() as (cluster, _, writer):
        await add(writer, 20)
        await until(lambda: writer.core.entries_held == 0)
        client = await cluster.client(replace(quick(), hole_search_delay_ms=300))
        await client.recover(writer.ledger_id)
        assert client.statistics()["hole_searches_waiting"] == 1
        await until(lambda: client.statistics()["hole_searches_waiting"] == 0)
        assert await marked(cluster, writer.ledger_id) == ()


async def test_a_reader_reports_the_damaged_copy_that_it_passed_over() -> None:
    async with one_ledger() as (cluster, client, writer):
        await add(writer, 5)
        await until(lambda: writer.core.entries_held == 0)
        for bookie in cluster.bookies.values():
            bookie.damaged_entries.add(2)
        reader = await client.open(writer.ledger_id)

        async def is_told() -> bool:
            return await reader.read_last_add_confirmed() == 4

        await until(is_told)
        with pytest.raises(EntryDamagedError):
            await reader.read(2, 2)
        await writer.close()
        await reader.refresh()
        assert await marked(cluster, writer.ledger_id) == ()  # a task would fence the ledger of a live writer
        names = writer.metadata.last_segment.bookies
        asked_first = names[writer.ledger_id % 3]  # as for all its entries
        for name, bookie in cluster.bookies.items():
            if name != asked_first:
                bookie.damaged_entries.clear()
        assert [entry.payload for entry in await reader.read(2, 2)] == [b"entry 2"]

        async def is_marked() -> bool:
            return await marked(cluster, writer.ledger_id) == (asked_first,)

        await until(is_marked)


async def test_a_recovery_reports_the_bookie_that_it_could_not_write_to() -> None:
    async with ledger_cluster() as cluster:
        for bookie in cluster.bookies.values():
            bookie.stalled_ops.add(BookieOp.WRITE_LAC)  # so that entry 0 is written back
        writer = await new_ledger(await cluster.client())
        await add(writer, 1)
        await until(lambda: writer.core.entries_held == 0)
        cluster.bookies["b3"].refusals[BookieOp.ADD] = Status.STORAGE_ERROR
        cluster.bookies["b1"].held_ops.add(BookieOp.ADD)
        limits = QuarantineLimits(pause_ms=3_600_000)
        client = await cluster.client(replace(quick(), hole_search_delay_ms=3_600_000, quarantine=limits))
        chooser, now = client._context.chooser, client._context.now
        recovering = asyncio.create_task(client.recover(writer.ledger_id))
        await until(lambda: not chooser.choose_replacements(("b1", "b2"), [0], now()))  # the refusal of b3 was noted
        cluster.bookies["b1"].release()
        assert (await recovering).last_entry_id == 0

        async def is_marked() -> bool:
            return await marked(cluster, writer.ledger_id) == ("b3",)

        await until(is_marked)


async def test_a_long_list_of_entries_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger_cluster() as cluster:
        monkeypatch.setattr(effect_runner, "LIST_RUNS_MAX", 4)
        for bookie in cluster.bookies.values():
            bookie.list_runs_max = 4
        client = await cluster.client()
        for count in (8, 10):
            writer = await new_ledger(client)
            await add(writer, count)
            await until(lambda writer=writer: writer.core.entries_held == 0)  # type: ignore[misc]
            await writer.close()
            assert await client.check(writer.ledger_id) == ()
            del cluster.bookies["b2"].ledgers[writer.ledger_id].entries[5]
            assert await client.check(writer.ledger_id) == ("b2",)


def test_a_ledger_that_goes_while_it_is_listed_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_runner, "LIST_RUNS_MAX", 2)
    answers = [(Status.OK, msgpack.packb([[0, 3], [5, 9]])), (Status.NO_LEDGER, b"")]
    heard: list[tuple[Reply, tuple[tuple[int, int], ...]]] = []

    class World:
        def request(
            self, bookie_id: str, request: BookieRequest, body: bytes, on_answer: Callable[..., None], context: object
        ) -> None:
            status, found = answers.pop(0)
            on_answer(context, Answer(1, status), memoryview(found))

        def now(self) -> int:
            return 0

    class Core:
        def on_entries_listed(
            self, bookie_id: str, reply: Reply, runs: tuple[tuple[int, int], ...], now: int
        ) -> list[Effect]:
            heard.append((reply, runs))
            return []

    effect_runner.EffectRunner(World(), Core()).run([ListEntries(7, "b1")])  # type: ignore[arg-type]
    assert heard == [(Reply.ABSENT, ())]


async def test_emptying_a_bookie_that_lives() -> None:
    async with one_ledger(4) as (cluster, client, writer):
        await add(writer, 300)
        leaving = writer.metadata.last_segment.bookies[1]
        assert not (await client.repair(writer.ledger_id, [], away_from=[leaving])).complete  # still being written
        await writer.close()
        for name in writer.metadata.last_segment.bookies:
            if name != leaving:
                cluster.bookies[name].refusals[BookieOp.READ_BATCH] = (
                    Status.STORAGE_ERROR
                )  # it is the only bookie left to read from
        assert (await client.repair(writer.ledger_id, [], away_from=[leaving])).complete
        record = (await client.metadata(writer.ledger_id)).record
        assert leaving not in record.last_segment.bookies
        for name in record.last_segment.bookies:  # I10
            assert len(cluster.bookies[name].ledgers[writer.ledger_id].entries) == 300
        assert (await client.repair(writer.ledger_id, [], away_from=[leaving])).complete
        assert client.statistics()["entries_repaired"] == 300


async def test_a_bookie_cannot_be_emptied_into_nothing() -> None:
    async with one_ledger(4) as (cluster, client, writer):
        await add(writer, 3)
        closed = await writer.close()
        spare = next(name for name in cluster.bookies if name not in closed.last_segment.bookies)
        leaving = [closed.last_segment.bookies[0], spare]  # the spare is to be emptied as well
        assert not (await client.repair(writer.ledger_id, [], away_from=leaving)).complete
        assert (await client.metadata(writer.ledger_id)).record == closed


async def test_a_bookie_that_fails_again_and_again_gets_no_new_ledgers() -> None:
    async with ledger_cluster(bookies=4) as cluster:
        config = replace(quick(), quarantine=QuarantineLimits(pause_ms=0, failures=1, quarantine_ms=60_000))
        client = await cluster.client(config)
        writer = await new_ledger(client)
        bad = writer.metadata.last_segment.bookies[0]
        cluster.bookies[bad].refusals[BookieOp.ADD] = Status.STORAGE_ERROR
        await add(writer, 1)
        await until(lambda: bad not in writer.metadata.last_segment.bookies)
        for _ in range(20):
            assert bad not in (await new_ledger(client)).metadata.last_segment.bookies
        with pytest.raises(TooFewBookiesError):
            await client.create(ensemble_size=5, write_quorum=5, ack_quorum=5)
        all_four = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        assert bad in all_four.metadata.last_segment.bookies  # there are no other bookies


class FromTheEnd:
    """A policy of a user."""

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


async def test_a_placement_class_of_the_users() -> None:
    async with ledger_cluster(bookies=5) as cluster:
        client = await cluster.client(replace(quick(), placement="end", placements=f"end={__name__}:FromTheEnd"))
        writer = await new_ledger(client)
        assert writer.metadata.last_segment.bookies == ("b3", "b4", "b5")
        await cluster.bookies["b4"].stop()
        await add(writer, 10)
        await until(lambda: writer.metadata.last_segment.bookies == ("b3", "b2", "b5"))
        for wrong in ("no.such:Policy", f"{__name__}:Missing", f"{__name__}:NeedsArguments"):
            with pytest.raises(InvalidConfigError, match="without arguments") as refused:
                await cluster.client(replace(quick(), placements=f"x={wrong}"))
            assert refused.value.field == "placements"
        with pytest.raises(InvalidConfigError, match="there is no placement"):
            await cluster.client(replace(quick(), placement=f"{__name__}.FromTheEnd"))


@pytest.mark.parametrize("placement", ["random-weighted", "rack-weighted"])
async def test_ledgers_go_where_there_is_room(placement: str) -> None:
    async with ledger_cluster() as cluster:
        await cluster.start_bookie("full", free_bytes=1)
        client = await cluster.client(replace(quick(), placement=placement))
        for _ in range(30):
            assert "full" not in (await new_ledger(client)).metadata.last_segment.bookies


async def test_a_silent_replica_is_asked_last_from_then_on() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client(replace(quick(), reader=ReaderLimits(speculative_ms=300)))
        writer = await new_ledger(client)
        await add(writer, 20)
        await writer.close()
        for name in ("b1", "b2"):
            cluster.bookies[name].stalled_ops.add(BookieOp.READ_BATCH)
        reader = await client.open(writer.ledger_id)
        for first in range(20):
            assert (await reader.read(first, first))[0].payload == b"entry %d" % first
        reads = {
            name: sum(request.op is BookieOp.READ_BATCH for request in bookie.requests)
            for name, bookie in cluster.bookies.items()
        }
        assert reads["b3"] == 20
        assert reads["b1"] <= 1
        assert reads["b2"] <= 1


async def test_full_disks_are_named_when_they_are_why_no_ledger_can_be_made() -> None:
    async with ledger_cluster(bookies=2) as cluster:
        client = await cluster.client()
        for name, share, is_full in (("b8", 0.971, True), ("b9", 0.5, False)):
            record = BookieRegistration(name, "h:1", used_share=share, is_full=is_full)
            await cluster.store.create(paths.bookie_readonly(name), encode(record), ephemeral=True, parents=True)
        await until(lambda: len(client.directory.readonly) == 2)
        full = r"^storage is full: 3 copies are required, 2 bookies take entries; b8 is full \(97%"
        with pytest.raises(StorageFullError, match=full):
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        with pytest.raises(StorageFullError, match=full):
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, minimum_copies=3)
        with pytest.raises(TooFewBookiesError, match=r"^too few bookies: 4"):  # space on b8 would not suffice
            await client.create(ensemble_size=4, write_quorum=4, ack_quorum=4)
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)  # I20
        assert writer.metadata.last_segment.bookies[2] == "~vacant-2"
        await add(writer, 10)
        await cluster.start_bookie("b10")
        await until(lambda: "b10" in writer.metadata.last_segment.bookies)
        await add(writer, 10)
        assert [segment.first_entry_id for segment in (await writer.close()).segments] == [0, 10]
