"""Tasks in metadata and the worker that does them, on an in-memory store and fake ledgers."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from heliograph.actors.auditor import service
from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.actors.auditor.worker import ReplicationWorker
from heliograph.actors.errors import LedgerRecoveryError, NoSuchLedgerError, QuorumLostError
from heliograph.actors.ledger.effects import CheckFinished, RepairFinished
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory.store import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.model import (
    BookieRegistration,
    LedgerMetadata,
    LedgerState,
    Segment,
    UnderReplicatedLedger,
    Versioned,
)
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore, SessionState


class FakeLedgers:
    """Ledgers kept in metadata whose repair replaces a missing bookie by the first spare one."""

    def __init__(self, store: MetadataStore, spares: list[str]) -> None:
        self.store = store
        self.spares = spares
        self.records: dict[int, LedgerMetadata] = {}
        self.holes: dict[int, set[str]] = {}
        self.recovered: list[int] = []
        self.silent: set[int] = set()  # ledgers that cannot be compared
        self.hopeless: set[int] = set()  # ledgers that cannot be repaired
        self.failures = 0
        self.may_be_open = False  # repair takes open ledgers too
        self.lost_entries = 0  # of ledgers that cannot be repaired
        self.damaged: list[str] = []  # bookies whose copies were to be read

    async def add(self, record: LedgerMetadata) -> None:
        self.records[record.ledger_id] = record
        await self.store.create(paths.ledger(record.ledger_id), encode(record), parents=True)

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        if ledger_id not in self.records:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return Versioned(self.records[ledger_id], 0)

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        self.recovered.append(ledger_id)
        return await self._change(replace(self.records[ledger_id], state=LedgerState.CLOSED, last_entry_id=9))

    async def repair(
        self,
        ledger_id: int,
        missing_bookies: Collection[str],
        *,
        away_from: Collection[str] = (),
        damaged: Collection[str] = (),
    ) -> RepairFinished:
        self.damaged += damaged
        if ledger_id in self.hopeless:
            return RepairFinished(False, 0, 0, "no copy", self.lost_entries)
        if self.failures:
            self.failures -= 1
            raise LedgerRecoveryError("not now")
        record = self.records[ledger_id]
        assert record.is_closed or self.may_be_open
        for bookie in (*missing_bookies, *away_from):
            self.holes.get(ledger_id, set()).discard(bookie)
            record = replace(record, segments=tuple(self._without(segment, bookie) for segment in record.segments))
        await self._change(record)
        return RepairFinished(True, 3, 300)

    async def holdings(self, ledger_id: int) -> tuple[LedgerMetadata, CheckFinished]:
        record = (await self.metadata(ledger_id)).record
        lacking = tuple((bookie, 2) for bookie in sorted(self.holes.get(ledger_id, ())))
        return record, CheckFinished(lacking, tuple(b for b in record.last_segment.bookies if b == "gone"))

    def statistics(self) -> dict[str, Any]:
        return {"entries_repaired": 3, "bytes_repaired": 300}

    async def check(self, ledger_id: int) -> Collection[str]:
        if ledger_id in self.silent:
            raise QuorumLostError("a bookie does not answer")
        return frozenset(self.holes.get(ledger_id, ()))

    def _without(self, segment: Segment, lost: str) -> Segment:
        if lost not in segment.bookies or lost.startswith("live"):
            return segment
        spare = next(spare for spare in self.spares if spare not in segment.bookies)
        return replace(segment, bookies=tuple(spare if bookie == lost else bookie for bookie in segment.bookies))

    async def _change(self, record: LedgerMetadata) -> LedgerMetadata:
        self.records[record.ledger_id] = record
        await self.store.set(paths.ledger(record.ledger_id), encode(record))
        return record


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class World:
    """One store, some bookies, and an auditor with its worker."""

    def __init__(self, config: AuditorConfig) -> None:
        self.server = MemoryServer()
        self.store: MetadataStore = self.server.open_session()
        self.ledgers = FakeLedgers(self.store, spares=["spare1", "spare2"])
        self.auditor = Auditor(self.store, self.ledgers, config, on_marked=lambda: None)
        self.clock = Clock()
        self.worker = ReplicationWorker(
            self.auditor.tasks,
            self.ledgers,
            self.auditor.membership.alive,
            self.auditor.membership.draining,
            config,
            self.clock,
        )

    async def start(self, *bookies: str) -> None:
        await initialise(self.store)
        for bookie in bookies:
            await self.store.create(
                paths.bookie_available(bookie), encode(BookieRegistration(bookie, "h:1")), ephemeral=True
            )


def ledger(ledger_id: int, bookies: str, state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    last = 9 if state is LedgerState.CLOSED else -1
    return LedgerMetadata(ledger_id, 3, 3, 2, (Segment(0, tuple(bookies.split())),), state=state, last_entry_id=last)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


NOW = AuditorConfig(lost_bookie_delay_ms=0, open_ledger_grace_ms=500)


def test_marking_is_idempotent_and_merges() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_task_that_grew_is_not_finished_by_its_old_version() -> None:  # I9
    async def scenario() -> None:
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

    run(scenario())


def test_a_lock_excludes_other_sessions_and_falls_with_its_own() -> None:
    async def scenario() -> None:
        server = MemoryServer()
        one, two = server.open_session(), server.open_session()
        await initialise(one)
        assert await UnderReplication(one).lock(5)
        assert await UnderReplication(one).lock(5)
        assert not await UnderReplication(two).lock(5)
        server.expire_session(one.session_id)
        assert await UnderReplication(two).lock(5)

    run(scenario())


def test_a_lost_bookies_ledgers_are_marked_and_repaired() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone"))
        await world.ledgers.add(ledger(2, "b1 b2 spare1"))
        found = await world.auditor.audit()
        assert found["lost_bookies"] == ["gone"]
        assert found["marked"] == 1
        assert await world.auditor.tasks.tasks() == [1]
        assert (await world.auditor.audit())["marked"] == 0
        assert await world.worker.work_once()
        assert await world.auditor.tasks.tasks() == []
        assert world.ledgers.records[1].last_segment.bookies == ("b1", "b2", "spare1")
        assert (await world.auditor.audit())["lost_bookies"] == []

    run(scenario())


def test_a_readonly_bookie_is_not_lost() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2")
        await world.store.create(paths.bookie_readonly("b3"), ephemeral=True)
        await world.ledgers.add(ledger(1, "b1 b2 b3"))
        assert (await world.auditor.audit())["lost_bookies"] == []

    run(scenario())


def test_an_open_ledger_is_fenced_only_after_its_grace() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone", LedgerState.OPEN))
        await world.auditor.audit()
        assert not await world.worker.work_once()
        world.clock.now = 499
        assert not await world.worker.work_once()
        assert world.ledgers.recovered == []
        world.clock.now = 500
        assert await world.worker.work_once()
        assert world.ledgers.recovered == [1]
        assert world.ledgers.records[1].last_segment.bookies == ("b1", "b2", "spare1")

    run(scenario())


def test_an_abandoned_ledger_is_recovered_for_a_bookie_that_lost_its_copies() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3")
        await world.ledgers.add(ledger(1, "live1 b2 b3", LedgerState.OPEN))
        task = UnderReplicatedLedger(1, ("live1",), 1, is_abandoned=True)
        await world.store.create(paths.underreplicated(1), encode(task), parents=True)
        await world.auditor.tasks.mark(1, ["b2"])  # a merge keeps the bookies that it names
        assert await world.worker.work_once()
        assert world.ledgers.recovered == [1]
        assert await world.auditor.tasks.tasks() == []

    run(scenario())


def test_an_abandoned_ledger_whose_writer_replaced_the_bookie_is_left_open() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3", "b4")
        segments = (Segment(0, ("live1", "b2", "b3")), Segment(5, ("b4", "b2", "b3")))
        await world.ledgers.add(replace(ledger(1, "live1 b2 b3", LedgerState.OPEN), segments=segments))
        world.ledgers.may_be_open = True
        await world.auditor.tasks.mark(1, ["live1"], is_abandoned=True)
        assert await world.worker.work_once()
        assert world.ledgers.recovered == []

    run(scenario())


def test_two_workers_share_the_tasks_and_repair_each_ledger_once() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
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

    run(scenario())


def test_a_worker_tries_a_failed_task_less_often_where_there_are_others() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone"))
        world.ledgers.failures, world.worker.workers = 1, 3
        await world.auditor.audit()
        assert not await world.worker.work_once()
        world.clock.now = 3 * NOW.task_retry_ms - 1
        assert not await world.worker.work_once()
        world.clock.now = 3 * NOW.task_retry_ms
        assert await world.worker.work_once()

    run(scenario())


def test_a_failed_task_stays_and_is_retried_after_a_pause() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone"))
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

    run(scenario())


def test_a_ledger_with_lost_entries_keeps_its_task_which_says_so() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3")
        await world.ledgers.add(ledger(1, "live1 b2 b3"))
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

    run(scenario())


def test_a_pause_holds_from_the_next_ledger_on() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3")
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

    run(scenario())


def test_a_ledger_is_described_by_its_record_and_by_what_bookies_hold() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2")
        await world.ledgers.add(ledger(1, "live1 b2 gone"))
        world.ledgers.holes[1] = {"b2"}
        await world.auditor.tasks.mark(1, ["gone"])
        found = await world.auditor.describe(1)
        assert found["bookies"] == {
            "b2": {"is_alive": True, "entries_missing": 2},
            "gone": {"is_alive": False, "entries_missing": None},
            "live1": {"is_alive": True, "entries_missing": 0},
        }
        (segment,) = found["segments"]
        assert (segment["first_entry_id"], segment["last_entry_id"], segment["copies_least"]) == (0, 9, 1)
        assert found["task"]["missing_bookies"] == ("gone",)

    run(scenario())


def test_the_task_of_a_deleted_ledger_is_done() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1")
        await world.auditor.tasks.mark(77, ["gone"])
        assert await world.worker.work_once()
        assert await world.auditor.tasks.tasks() == []

    run(scenario())


def test_holes_on_a_live_bookie_are_found_once_and_marked() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3")
        await world.ledgers.add(ledger(1, "live1 b2 b3"))
        assert (await world.auditor.audit())["marked"] == 0
        world.ledgers.holes[1] = {"live1"}
        assert (await world.auditor.audit())["marked"] == 0
        assert (await world.auditor.audit(everything=True))["marked"] == 1
        assert await world.worker.work_once()
        assert world.ledgers.holes[1] == set()
        assert world.ledgers.records[1].last_segment.bookies == ("live1", "b2", "b3")

    run(scenario())


def test_a_hole_for_which_there_was_no_room_is_marked_later() -> None:
    async def scenario() -> None:
        world = World(replace(NOW, tasks_outstanding_max=1))
        await world.start("live1", "b2", "b3")
        await world.auditor.tasks.mark(77, ["gone"])
        await world.ledgers.add(ledger(1, "live1 b2 b3"))
        world.ledgers.holes[1] = {"live1"}
        assert (await world.auditor.audit())["marked"] == 0
        assert await world.worker.work_once()
        assert (await world.auditor.audit())["marked"] == 1
        assert await world.worker.work_once()
        assert world.ledgers.holes[1] == set()

    run(scenario())


def test_a_hole_that_the_store_would_not_note_is_marked_later() -> None:
    class Forgetful(UnderReplication):
        async def mark(self, *_: object, **__: object) -> bool:
            raise ConnectionLossError("not now")

    async def scenario() -> None:
        world = World(NOW)
        await world.start("live1", "b2", "b3")
        await world.ledgers.add(ledger(1, "live1 b2 b3"))
        world.ledgers.holes[1] = {"live1"}
        sound, world.auditor.tasks = world.auditor.tasks, Forgetful(world.store)
        with pytest.raises(ConnectionLossError):
            await world.auditor.audit()
        world.auditor.tasks = sound
        assert (await world.auditor.audit())["marked"] == 1

    run(scenario())


def test_ledgers_without_any_copy_do_not_keep_others_from_being_repaired() -> None:
    async def scenario() -> None:
        world = World(replace(NOW, tasks_outstanding_max=4))
        await world.start("b1", "b2", "spare1")
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

    run(scenario())


def test_ledgers_that_cannot_be_compared_do_not_keep_others_from_it() -> None:
    async def scenario() -> None:
        world = World(replace(NOW, ledgers_checked_per_audit_max=2))
        await world.start("live1", "b2", "b3")
        for ledger_id in range(1, 8):
            await world.ledgers.add(ledger(ledger_id, "live1 b2 b3"))
        world.ledgers.silent = {1, 2, 3}
        world.ledgers.holes[7] = {"live1"}
        marked = [(await world.auditor.audit())["marked"] for _ in range(4)]
        assert sum(marked) == 1
        world.ledgers.silent = set()
        world.ledgers.holes[2] = {"live1"}
        marked = [(await world.auditor.audit())["marked"] for _ in range(4)]
        assert sum(marked) == 1, "those that could not be compared have their turn again"
        assert await world.auditor.tasks.tasks() == [2, 7]

    run(scenario())


def test_a_record_that_cannot_be_read_keeps_no_other_ledger_from_being_repaired() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone"))
        await world.ledgers.add(ledger(2, "b1 b2 gone"))
        await world.store.set(paths.ledger(1), b"from a newer version")
        assert (await world.auditor.audit())["marked"] == 1
        assert await world.auditor.tasks.tasks() == [2]
        assert world.auditor.statistics()["ledgers_unreadable"] == 1
        with pytest.raises(RecordError):
            await scan_ledgers(world.store, 2)  # a caller that needs all records does not get some

    run(scenario())


def test_a_bookie_that_came_during_the_audit_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2")
        alive = world.auditor.membership.alive

        async def newcomer() -> None:
            if await world.store.exists(paths.bookie_available("b3")) is None:
                await world.store.create(paths.bookie_available("b3"), ephemeral=True)
                await world.ledgers.add(ledger(1, "b1 b2 b3", LedgerState.OPEN))

        async def alive_then_newcomer() -> frozenset[str]:
            found = await alive()
            await newcomer()
            return found

        async def scan_then_newcomer(*arguments: Any) -> list[LedgerMetadata]:
            found = await scan_ledgers(*arguments)
            await newcomer()
            return found

        monkeypatch.setattr(world.auditor.membership, "alive", alive_then_newcomer)
        monkeypatch.setattr("heliograph.actors.auditor.auditor.scan_ledgers", scan_then_newcomer)
        for _ in range(2):
            assert (await world.auditor.audit())["lost_bookies"] == []

    run(scenario())


def test_nothing_is_marked_or_copied_while_it_is_forbidden() -> None:
    async def scenario() -> None:
        world = World(NOW)
        await world.start("b1", "b2", "spare1")
        await world.ledgers.add(ledger(1, "b1 b2 gone"))
        await world.auditor.tasks.set_enabled(False)
        await world.auditor.tasks.set_enabled(False)
        assert (await world.auditor.audit())["marked"] == 0
        await world.auditor.tasks.mark(1, ["gone"])
        assert not await world.worker.work_once()
        await world.auditor.tasks.set_enabled(True)
        assert await world.worker.work_once()

    run(scenario())


def test_of_two_auditors_one_leads_and_the_other_follows_its_death() -> None:
    async def scenario() -> None:
        server = MemoryServer()
        stores = [server.open_session(), server.open_session()]
        await initialise(stores[0])
        auditors = [Auditor(store, FakeLedgers(store, []), NOW, on_marked=lambda: None) for store in stores]
        runs = [asyncio.create_task(auditor.run()) for auditor in auditors]

        async def leaders(expected: list[bool]) -> None:
            async with asyncio.timeout(60):
                while [bool(auditor.statistics()["is_leader"]) for auditor in auditors] != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0)

        await leaders([True, False])
        server.expire_session(stores[0].session_id)
        await leaders([False, True])
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    run(scenario())


def test_a_session_that_nothing_could_be_begun_with_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = MemoryServer()
        opened: list[MemoryStore] = []

        async def connect(url: str, **_: Any) -> MetadataStore:
            opened.append(server.open_session())
            return opened[-1]

        async def fail(*_: Any) -> None:
            raise ConnectionLossError("not now")

        monkeypatch.setattr(service, "connect_store", connect)
        monkeypatch.setattr(service, "RESTART_PAUSE_SECONDS", 0)
        monkeypatch.setattr("heliograph.actors.auditor.service.LedgerClient.start", fail)
        auditor = service.AuditorService(NOW, "memory://none", on_crash=lambda: None)
        await auditor.start()
        async with asyncio.timeout(60):
            while len(opened) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await auditor.stop()
        assert {store.state for store in opened} == {SessionState.LOST}

    run(scenario())


def test_a_scan_sees_every_ledger() -> None:
    async def scenario() -> None:
        store = MemoryServer().open_session()
        await initialise(store)
        ledgers = FakeLedgers(store, [])
        ids = [0, 1, 9_999, 10_000, 123_456_789, 98_765_432_101]
        for ledger_id in ids:
            await ledgers.add(ledger(ledger_id, "a b c"))
        assert [found.ledger_id for found in await scan_ledgers(store, 2)] == ids

    run(scenario())


@pytest.mark.parametrize(
    "setting", [{"lost_bookie_delay_ms": -1}, {"audit_interval_ms": 0}, {"task_retry_ms": 5, "task_retry_ms_max": 4}]
)
def test_settings_out_of_range_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        AuditorConfig(**setting)  # type: ignore[arg-type]
    assert caught.value.field in setting
