"""The replication worker: which tasks it does, when, and how often, and the tasks' marks, versions and locks in
metadata."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.auditor.worker import ReplicationWorker
from heliograph.actors.ledger.effects import RepairFinished
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration, LedgerState, Segment
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metrics.exposition import exposition
from heliograph.metrics.parts import of_auditor
from heliograph.metrics.table import METRICS
from tests.unit.auditor.world import NOW, World, ledger


async def test_an_open_ledger_is_fenced_only_after_its_grace() -> None:
    world = await World.started("b1 b2 spare1")
    await world.ledgers.add(ledger(1, "b1 b2 gone", LedgerState.OPEN))
    await world.auditor.audit()
    assert not await world.worker.work_once()
    found = world.worker.statistics()
    assert (found["waiting_seconds"], found["ledgers_without_place"]) == (0.5, 0)
    world.clock.now = 499
    assert not await world.worker.work_once()
    assert world.ledgers.recovered == []
    world.clock.now = 500
    assert await world.worker.work_once()
    assert world.ledgers.recovered == [1]
    assert world.ledgers.records[1].last_segment.bookies == ("b1", "b2", "spare1")


async def test_an_open_ledger_that_no_bookie_can_complete_is_never_fenced(caplog: pytest.LogCaptureFixture) -> None:
    """Its writer goes on at the ack quorum. A fence would make no copy and could stop the topic (I20)."""
    world = World(NOW)
    world.ledgers.spares = []
    world.ledgers.hopeless = {1, 2}
    await world.start("b1", "b2")
    await world.ledgers.add(ledger(1, "b1 b2 gone", LedgerState.OPEN))
    await world.ledgers.add(ledger(2, "b1 b2 ~vacant-2", LedgerState.OPEN))
    caplog.set_level("INFO")
    for _ in range(200):
        await world.auditor.audit()
        await world.worker.work_once()
        world.clock.now += 1_000
    assert world.ledgers.recovered == []
    assert len([line for line in caplog.messages if "not repaired" in line]) == 2  # one for each ledger
    assert sorted(await world.auditor.tasks.tasks()) == [1, 2]
    found = world.worker.statistics()
    assert (found["waiting_seconds"], found["ledgers_without_place"]) == (0, 2)
    # A bookie comes: writers have the grace to go on with it. Then the ledger has no writer, and is closed.
    world.ledgers.spares, world.ledgers.hopeless = ["spare1"], set()
    await world.store.create(
        paths.bookie_available("spare1"), encode(BookieRegistration("spare1", "h:1")), ephemeral=True
    )
    await world.worker.work_once()
    assert world.ledgers.recovered == []
    world.clock.now += 499
    await world.worker.work_once()
    assert world.ledgers.recovered == []
    world.clock.now += 1
    await world.worker.work_once()
    assert sorted(world.ledgers.recovered) == [1, 2]


async def test_an_abandoned_ledger_is_recovered_for_a_bookie_that_lost_its_copies() -> None:
    world = await World.started("live1 b2 b3")
    await world.ledgers.add(ledger(1, "live1 b2 b3", LedgerState.OPEN))
    task = UnderReplicatedLedger(1, ("live1",), 1, is_abandoned=True)
    await world.store.create(paths.underreplicated(1), encode(task), parents=True)
    await world.auditor.tasks.mark(1, ["b2"])  # a merge keeps the bookies that it names
    assert await world.worker.work_once()
    assert world.ledgers.recovered == [1]
    assert await world.auditor.tasks.tasks() == []


async def test_an_abandoned_ledger_whose_writer_replaced_the_bookie_is_left_open() -> None:
    world = await World.started("live1 b2 b3 b4")
    segments = (Segment(0, ("live1", "b2", "b3")), Segment(5, ("b4", "b2", "b3")))
    await world.ledgers.add(replace(ledger(1, "live1 b2 b3", LedgerState.OPEN), segments=segments))
    world.ledgers.may_be_open = True
    await world.auditor.tasks.mark(1, ["live1"], is_abandoned=True)
    assert await world.worker.work_once()
    assert world.ledgers.recovered == []


async def test_two_workers_share_the_tasks_and_repair_each_ledger_once() -> None:
    world = await World.started("b1 b2 spare1")
    other_store = world.server.open_session()
    second = ReplicationWorker(
        UnderReplication(other_store),
        world.ledgers,
        world.auditor.membership.alive,
        world.auditor.membership.draining,
        NOW,
        world.clock,
    )
    for number in range(1, 21):
        await world.ledgers.add(ledger(number, "b1 b2 gone"))
    await world.auditor.audit()
    await asyncio.gather(world.worker.work_once(), second.work_once())
    done = [worker.statistics()["ledgers_repaired"] for worker in (world.worker, second)]
    assert sum(done) == 20
    assert min(done) > 0
    assert await world.auditor.tasks.tasks() == []
    assert await world.auditor.tasks.in_repair() == set()


async def test_a_worker_tries_a_failed_task_less_often_where_there_are_others() -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone")
    world.ledgers.failures, world.worker.workers = 1, 3
    await world.auditor.audit()
    assert not await world.worker.work_once()
    world.clock.now = 3 * NOW.task_retry_ms - 1
    assert not await world.worker.work_once()
    world.clock.now = 3 * NOW.task_retry_ms
    assert await world.worker.work_once()


async def test_a_failed_task_stays_and_is_retried_after_a_pause() -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone")
    world.ledgers.failures = 2
    await world.auditor.audit()
    assert not await world.worker.work_once()
    assert not await world.worker.work_once()
    assert world.worker.statistics()["failures"] == 1
    world.clock.now = NOW.task_retry_ms
    assert not await world.worker.work_once()
    world.clock.now = 3 * NOW.task_retry_ms
    assert await world.worker.work_once()
    assert await world.auditor.tasks.tasks() == []


async def test_each_attempt_to_repair_a_ledger_is_in_the_histogram_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone")
    world.ledgers.failures = 1
    await world.auditor.audit()
    repair = world.ledgers.repair

    async def slowly(*arguments: Any, **options: Any) -> Any:
        world.clock.now += 45_000
        return await repair(*arguments, **options)

    monkeypatch.setattr(world.ledgers, "repair", slowly)
    assert not await world.worker.work_once()
    world.clock.now += NOW.task_retry_ms
    assert await world.worker.work_once()
    name = "heliograph_auditor_repair_duration_seconds"
    found = of_auditor("replicator-1", {"worker": world.worker.statistics()})
    lines = exposition([METRICS[name]], found).splitlines()
    assert f'{name}_bucket{{worker="replicator-1",le="30.0"}} 0' in lines
    assert f'{name}_bucket{{worker="replicator-1",le="60.0"}} 2' in lines
    assert f'{name}_sum{{worker="replicator-1"}} 90.0' in lines


async def test_a_ledger_with_lost_entries_keeps_its_task_which_says_so() -> None:
    world = await World.started("live1 b2 b3", "live1 b2 b3")
    tasks = world.auditor.tasks
    await tasks.mark(1, ["live1"], ["live1"])
    world.ledgers.hopeless, world.ledgers.lost_entries = {1}, 3
    assert not await world.worker.work_once()
    assert world.ledgers.damaged == ["live1"]
    assert world.worker.statistics()["ledgers_damaged"] == 1
    task = await tasks.task(1)
    assert task is not None
    assert (task.record.damaged_bookies, task.record.lost_entries) == (("live1",), 3)
    world.ledgers.hopeless = set()
    world.clock.now = NOW.task_retry_ms
    assert await world.worker.work_once()
    assert (await tasks.tasks(), world.worker.statistics()["ledgers_damaged"]) == ([], 0)


async def test_a_pause_holds_from_the_next_ledger_on() -> None:
    world = await World.started("live1 b2 b3")
    tasks = world.auditor.tasks
    for number in (1, 2, 3):
        await world.ledgers.add(ledger(number, "live1 b2 b3"))
        await tasks.mark(number, ["live1"])
    repair = world.ledgers.repair

    async def repair_and_pause(*args: Any, **kwargs: Any) -> RepairFinished:
        await tasks.set_enabled(False)
        return await repair(*args, **kwargs)

    world.ledgers.repair = repair_and_pause  # type: ignore[method-assign]
    await world.worker.work_once()
    assert len(await tasks.tasks()) == 2


async def test_the_task_of_a_deleted_ledger_is_done() -> None:
    world = await World.started("b1")
    await world.auditor.tasks.mark(77, ["gone"])
    assert await world.worker.work_once()
    assert await world.auditor.tasks.tasks() == []


async def test_ledgers_without_any_copy_do_not_keep_others_from_being_repaired() -> None:
    world = await World.started("b1 b2 spare1", config=replace(NOW, tasks_outstanding_max=4))
    for ledger_id in range(1, 7):
        await world.ledgers.add(ledger(ledger_id, "gone gone2 gone3"))
    await world.auditor.audit()
    world.ledgers.hopeless = set(range(1, 7))
    for ledger_id in range(7, 10):
        await world.ledgers.add(ledger(ledger_id, "b1 b2 gone"))
    for _ in range(2):
        await world.auditor.audit()
        await world.worker.work_once()
    for ledger_id in range(7, 10):
        assert world.ledgers.records[ledger_id].last_segment.bookies == ("b1", "b2", "spare1")


async def test_marking_is_idempotent_and_merges() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    tasks = UnderReplication(store)
    assert await tasks.mark(5, ["b"])
    assert not await tasks.mark(5, ["b"])
    assert await tasks.mark(5, ["a"])
    found = await tasks.task(5)
    assert found is not None
    assert found.record.missing_bookies == ("a", "b")
    assert await tasks.tasks() == [5]


async def test_a_task_that_grew_is_not_finished_by_its_old_version() -> None:  # I9
    store = MemoryServer().open_session()
    await initialise(store)
    tasks = UnderReplication(store)
    await tasks.mark(5, ["a"])
    read = await tasks.task(5)
    assert read is not None
    await tasks.mark(5, ["b"])
    assert not await tasks.finish(5, read.version)
    again = await tasks.task(5)
    assert again is not None
    assert await tasks.finish(5, again.version)
    assert await tasks.finish(5, again.version)
    assert await tasks.tasks() == []


async def test_a_lock_excludes_other_sessions_and_falls_with_its_own() -> None:
    server = MemoryServer()
    one, two = server.open_session(), server.open_session()
    await initialise(one)
    assert await UnderReplication(one).lock(5)
    assert await UnderReplication(one).lock(5)
    assert not await UnderReplication(two).lock(5)
    server.expire_session(one.session_id)
    assert await UnderReplication(two).lock(5)
