"""Scrubs of real bookies: damage that no reader met is found, reported, and mended from another copy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store.entry_log import HEADER_BYTES, log_path
from heliograph.actors.bookie.store.index import IndexBatch
from heliograph.actors.bookie.upkeep import scrub, scrub_record
from heliograph.actors.bookie.upkeep.scrub_record import ScrubRecord
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.driver.writer import LedgerWriter
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.connect import connect_store
from tests.cluster.ledger.test_on_bookies import RealCluster, contents, real_cluster
from tests.cluster.support.bookie_peer import BookiePeer
from tests.cluster.support.ledger_cluster import until

PAYLOADS = [b"entry %d " % n * 50 for n in range(100)]
DAMAGES = 5


async def filled(client: LedgerClient, cluster: RealCluster) -> LedgerWriter:
    """Return the writer of an open ledger with all its entries in the entry logs of three bookies."""
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    await asyncio.gather(*map(writer.add, PAYLOADS))
    for bookie in cluster.bookies.values():
        await bookie.checkpoint()
    return writer


def harm(directory: Path, bookie_id: str) -> None:
    path = log_path(directory / bookie_id / "data", 1)
    whole = bytearray(path.read_bytes())
    used = len(whole.rstrip(b"\0"))
    for number in range(DAMAGES):
        whole[HEADER_BYTES + (2 * number + 1) * used // 12] ^= 4
    path.write_bytes(whole)


async def task_of(tasks: UnderReplication, ledger_id: int) -> UnderReplicatedLedger | None:
    found = await tasks.task(ledger_id)
    return found.record if found else None


def scrubbed(bookie: Bookie) -> dict[str, object]:
    return {name: value for name, value in bookie.statistics().items() if name.startswith("scrub")}


async def test_damage_that_nobody_reads_is_found_and_mended(tmp_path: Path) -> None:  # I10
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        await writer.close()
        ledger_id, bookie = writer.ledger_id, cluster.bookies["b2"]
        tasks = UnderReplication(await connect_store(cluster.url))
        assert await bookie.scrub() == 0
        assert await tasks.tasks() == []
        harm(tmp_path, "b2")
        assert await bookie.scrub() == 1
        task = await task_of(tasks, ledger_id)
        assert task is not None
        assert (task.missing_bookies, task.damaged_bookies) == (("b2",), ("b2",))
        found = scrubbed(bookie)
        assert (found["scrub_passes"], found["scrub_damaged_entries"]) == (2, DAMAGES)
        assert found["scrub_ledgers_marked"] == 1
        outcome = await client.repair(ledger_id, task.missing_bookies, damaged=task.damaged_bookies)
        assert (outcome.complete, outcome.copied_entries) == (True, DAMAGES)
        assert await bookie.scrub() == 0, "the good copies are in the write cache"
        await bookie.checkpoint()
        assert await bookie.scrub() == 0, "the newest copy of an entry counts"
        peer = await BookiePeer.connect(bookie.address)
        assert {await peer.status(BookieOp.READ, ledger_id, n) for n in range(100)} == {Status.OK}
        peer.close()
        assert await contents(client, ledger_id) == PAYLOADS


async def test_damage_of_every_copy_is_said_and_nothing_is_changed(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        await writer.close()
        for bookie_id in cluster.bookies:
            harm(tmp_path, bookie_id)
            assert await cluster.bookies[bookie_id].scrub() == 1
        before = [log_path(tmp_path / name / "data", 1).read_bytes() for name in cluster.bookies]
        outcome = await client.repair(writer.ledger_id, ["b1", "b2", "b3"], damaged=["b1", "b2", "b3"])
        assert (outcome.complete, outcome.copied_entries, outcome.lost_entries) == (False, 0, DAMAGES)
        assert [log_path(tmp_path / name / "data", 1).read_bytes() for name in cluster.bookies] == before


async def test_a_damaged_open_ledger_is_marked_once_it_is_closed(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        bookie = cluster.bookies["b2"]
        tasks = UnderReplication(await connect_store(cluster.url))
        harm(tmp_path, "b2")
        assert await bookie.scrub() == 1
        assert bookie._running is not None
        await bookie._running.scrub.look_at_unclosed()
        assert await tasks.tasks() == []
        await writer.close()
        await bookie._running.scrub.look_at_unclosed()
        assert await tasks.tasks() == [writer.ledger_id]


async def test_entries_that_the_index_lost_are_found(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        await writer.close()
        bookie = cluster.bookies["b2"]
        assert bookie._opened is not None
        directory = bookie._opened.storage.directory_of(writer.ledger_id)
        directory.commit(IndexBatch(removed_runs=[next(directory.index.runs(writer.ledger_id))]))
        assert await bookie.scrub() == 1
        assert scrubbed(bookie)["scrub_incomplete_ledgers"] == 1
        task = await task_of(UnderReplication(await connect_store(cluster.url)), writer.ledger_id)
        assert task is not None
        outcome = await client.repair(writer.ledger_id, task.missing_bookies, damaged=task.damaged_bookies)
        assert outcome.complete
        assert await bookie.scrub() == 0


async def test_a_scrub_waits_while_it_is_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "PAUSE_CHECK_SECONDS", 0.01)
    async with real_cluster(tmp_path, 3) as (cluster, client):
        await (await filled(client, cluster)).close()
        store = await connect_store(cluster.url)
        await store.create(paths.SCRUB_DISABLED, parents=True)
        bookie = cluster.bookies["b2"]
        scrubbing = asyncio.create_task(bookie.scrub())
        await until(lambda: bool(bookie.statistics()["is_scrub_paused"]))
        assert scrubbed(bookie)["scrub_entries"] == 0
        await store.delete(paths.SCRUB_DISABLED)
        assert await asyncio.wait_for(scrubbing, 30) == 0
        assert scrubbed(bookie)["scrub_entries"] == 100


async def test_a_scrub_marks_no_more_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # I15
    monkeypatch.setattr(scrub, "PAUSE_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(scrub, "TASKS_OUTSTANDING_MAX", 1)
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        await writer.close()
        tasks = UnderReplication(await connect_store(cluster.url))
        await tasks.mark(4711, ["b1"])
        bookie = cluster.bookies["b2"]
        harm(tmp_path, "b2")
        scrubbing = asyncio.create_task(bookie.scrub())
        await until(lambda: scrubbed(bookie)["scrub_damaged_entries"] == DAMAGES)
        assert await tasks.tasks() == [4711]
        found = await tasks.task(4711)
        assert found is not None
        await tasks.finish(4711, found.version)
        assert await asyncio.wait_for(scrubbing, 30) == 1
        assert await tasks.tasks() == [writer.ledger_id]


async def test_scrubs_run_by_themselves_again_and_again(tmp_path: Path) -> None:
    config = BookieConfig("b1", (tmp_path,), (tmp_path,), scrub_interval_ms=20)
    bookie = Bookie(config, None)
    await bookie.start()
    try:
        await until(lambda: int(str(scrubbed(bookie)["scrub_passes"])) >= 2)
    finally:
        await bookie.stop()


async def test_place_and_counts_of_a_scrub_outlive_the_bookie(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await filled(client, cluster)
        await writer.close()
        tasks = UnderReplication(await connect_store(cluster.url))
        harm(tmp_path, "b2")
        assert await cluster.bookies["b2"].scrub() == 1
        before = scrubbed(cluster.bookies["b2"])
        await cluster.stop_bookie("b2")
        await cluster.start_bookie("b2")
        bookie = cluster.bookies["b2"]
        running = bookie._running
        assert running is not None
        after = scrubbed(bookie)
        assert after["scrub_passes"] == before["scrub_passes"] == 1
        assert after["scrub_damaged_entries"] == DAMAGES
        assert after["scrub_ended_ms"] == before["scrub_ended_ms"] != 0
        await running.scrub.look_at_marked()
        assert scrubbed(bookie)["scrub_ledgers_mended"] == 0, "its task is not done"
        found = await tasks.task(writer.ledger_id)
        assert found is not None
        await tasks.finish(writer.ledger_id, found.version)
        await running.scrub.look_at_marked()
        assert scrubbed(bookie)["scrub_ledgers_mended"] == 1


async def test_a_pass_goes_on_where_an_earlier_process_of_the_bookie_was(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3) as (cluster, client):
        first, second = await filled(client, cluster), await filled(client, cluster)
        for writer in (first, second):
            await writer.close()
        await cluster.stop_bookie("b2")
        kept = ScrubRecord(passes=7, entries=1_000, begun_ms=1, next_ledger=second.ledger_id)
        scrub_record.save(RealDisk(), tmp_path / "b2" / "data", kept)
        await cluster.start_bookie("b2")
        bookie = cluster.bookies["b2"]
        assert scrubbed(bookie)["scrub_next_ledger"] == second.ledger_id
        assert await bookie.scrub() == 0
        found = scrubbed(bookie)
        assert (found["scrub_passes"], found["scrub_entries"]) == (8, 1_000 + len(PAYLOADS))
        assert found["scrub_next_ledger"] == -1
        assert await bookie.scrub() == 0
        assert scrubbed(bookie)["scrub_entries"] == 1_000 + 3 * len(PAYLOADS), "the next pass reads all again"


async def test_a_damaged_record_of_scrubs_costs_a_pass_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / scrub_record.RECORD_NAME).write_bytes(b"not a record")
    bookie = Bookie(BookieConfig("b1", (tmp_path,), (tmp_path,)), None)
    await bookie.start()
    assert scrubbed(bookie)["scrub_passes"] == 0
    assert await bookie.scrub() == 0
    await bookie.stop()
    assert scrub_record.load(RealDisk(), tmp_path).passes == 1
