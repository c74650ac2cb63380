"""The auditor: what it finds, marks and exports to Ray, on an in-memory store and fake ledgers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from heliograph.actors.auditor import actor, service
from heliograph.actors.auditor import auditor as auditing
from heliograph.actors.auditor.actor import AuditorActor
from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.checks import ledgers_on
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.auditor.placements import index
from heliograph.actors.auditor.placements.following import LedgerFollower
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.bookie_records import LedgerRisks
from heliograph.metadata.codec import encode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.model import BookieRegistration, LedgerState
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore, SessionState
from heliograph.metrics.auditor import AUDITOR_METRICS
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.cluster.support.ledger_cluster import until
from tests.unit.auditor.world import NOW, FakeLedgers, World, ledger


async def test_a_lost_bookies_ledgers_are_marked_and_repaired() -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone", "b1 b2 spare1")
    found = await world.auditor.audit()
    assert found["lost_bookies"] == ["gone"]
    assert found["marked"] == 1
    assert await world.auditor.tasks.tasks() == [1]
    assert (await world.auditor.audit())["marked"] == 0
    assert world.auditor.statistics()["lost_bookies"] == ["gone"], "all its ledgers have tasks"
    assert await world.worker.work_once()
    assert await world.auditor.tasks.tasks() == []
    assert world.ledgers.records[1].last_segment.bookies == ("b1", "b2", "spare1")
    assert (await world.auditor.audit())["lost_bookies"] == []


async def test_an_audit_before_a_loss_says_nothing_of_it() -> None:
    world = await World.started("b1 b2 gone", "b1 b2 gone")
    await world.auditor.membership.start()
    assert not world.auditor.is_current
    await world.auditor.audit()
    assert world.auditor.is_current
    await world.store.delete(paths.bookie_available("gone"))
    await until(lambda: not world.auditor.is_current)
    assert world.auditor.statistics()["absent_bookies"] == []
    await world.auditor.audit()
    assert world.auditor.is_current
    assert world.auditor.statistics()["absent_bookies"] == ["gone"]
    world.auditor.membership.stop()


async def test_the_ledgers_that_a_machine_would_stop_are_stored() -> None:
    world = await World.started("b3")
    for name, address in (("b1", "10.0.0.1:3181"), ("b2", "tls://10.0.0.1:3182")):
        value = encode(BookieRegistration(name, address))
        await world.store.create(paths.bookie_available(name), value, ephemeral=True)
    await world.ledgers.add(ledger(1, "b1 b2 b3", state=LedgerState.OPEN))
    await world.auditor.audit()
    assert (await read(world.store, paths.LEDGER_RISKS, LedgerRisks)).record == LedgerRisks({"10.0.0.1": 1})
    await world.store.delete(paths.bookie_available("b2"))
    await world.auditor.audit()
    assert (await read(world.store, paths.LEDGER_RISKS, LedgerRisks)).record.machines["10.0.0.1"] == 1


async def test_a_readonly_bookie_is_not_lost() -> None:
    world = await World.started("b1 b2")
    await world.store.create(paths.bookie_readonly("b3"), ephemeral=True)
    await world.ledgers.add(ledger(1, "b1 b2 b3"))
    assert (await world.auditor.audit())["lost_bookies"] == []


async def test_a_ledger_is_described_by_its_record_and_by_what_bookies_hold() -> None:
    world = await World.started("live1 b2", "live1 b2 gone")
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
    assert found["ledger"]["state"] == "closed"
    assert msgpack.packb(found), "a gateway packs it"


async def test_holes_on_a_live_bookie_are_found_once_and_marked() -> None:
    world = await World.started("live1 b2 b3", "live1 b2 b3")
    assert (await world.auditor.audit())["marked"] == 0
    world.ledgers.holes[1] = {"live1"}
    assert (await world.auditor.audit())["marked"] == 0
    assert (await world.auditor.audit(everything=True))["marked"] == 1
    assert await world.worker.work_once()
    assert world.ledgers.holes[1] == set()
    assert world.ledgers.records[1].last_segment.bookies == ("live1", "b2", "b3")


async def test_a_hole_for_which_there_was_no_room_is_marked_later() -> None:
    world = await World.started("live1 b2 b3", config=replace(NOW, tasks_outstanding_max=1))
    await world.auditor.tasks.mark(77, ["gone"])
    await world.ledgers.add(ledger(1, "live1 b2 b3"))
    world.ledgers.holes[1] = {"live1"}
    assert (await world.auditor.audit())["marked"] == 0
    assert await world.worker.work_once()
    assert (await world.auditor.audit())["marked"] == 1
    assert await world.worker.work_once()
    assert world.ledgers.holes[1] == set()


async def test_a_hole_that_the_store_would_not_note_is_marked_later() -> None:
    class Forgetful(UnderReplication):
        async def mark(self, *_: object, **__: object) -> bool:
            raise ConnectionLossError("not now")

    world = await World.started("live1 b2 b3", "live1 b2 b3")
    world.ledgers.holes[1] = {"live1"}
    sound, world.auditor.tasks = world.auditor.tasks, Forgetful(world.store)
    with pytest.raises(ConnectionLossError):
        await world.auditor.audit()
    world.auditor.tasks = sound
    assert (await world.auditor.audit())["marked"] == 1


async def test_ledgers_that_cannot_be_compared_do_not_keep_others_from_it() -> None:
    world = await World.started("live1 b2 b3", config=replace(NOW, ledgers_checked_per_audit_max=2))
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


async def test_a_record_that_cannot_be_read_keeps_no_other_ledger_from_being_repaired() -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone", "b1 b2 gone")
    await world.store.set(paths.ledger(1), b"from a newer version")
    assert (await world.auditor.audit())["marked"] == 1
    assert await world.auditor.tasks.tasks() == [2]
    assert world.auditor.statistics()["ledgers_unreadable"] == 1
    with pytest.raises(RecordError):
        await all_ledgers(world.store)  # a caller that needs all records does not get some


async def test_a_bookie_that_came_during_the_audit_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.started("b1 b2")
    alive = world.auditor.membership.alive

    async def newcomer() -> None:
        if await world.store.exists(paths.bookie_available("b3")) is None:
            await world.store.create(paths.bookie_available("b3"), ephemeral=True)
            await world.ledgers.add(ledger(1, "b1 b2 b3", LedgerState.OPEN))

    async def alive_then_newcomer() -> frozenset[str]:
        found = await alive()
        await newcomer()
        return found

    catch_up = LedgerFollower.catch_up

    async def catch_up_then_newcomer(*arguments: Any, **options: Any) -> None:
        await catch_up(*arguments, **options)
        await newcomer()

    monkeypatch.setattr(world.auditor.membership, "alive", alive_then_newcomer)
    monkeypatch.setattr(LedgerFollower, "catch_up", catch_up_then_newcomer)
    for _ in range(2):
        assert (await world.auditor.audit())["lost_bookies"] == []


async def test_nothing_is_marked_or_copied_while_it_is_forbidden() -> None:
    world = await World.started("b1 b2 spare1", "b1 b2 gone")
    await world.auditor.tasks.set_enabled(False)
    await world.auditor.tasks.set_enabled(False)
    assert (await world.auditor.audit())["marked"] == 0
    assert world.auditor.statistics()["lost_bookies"] == [], "its ledgers have no tasks"
    await world.auditor.tasks.mark(1, ["gone"])
    assert not await world.worker.work_once()
    await world.auditor.tasks.set_enabled(True)
    assert await world.worker.work_once()


async def test_of_two_auditors_one_leads_and_the_other_follows_its_death() -> None:
    server = MemoryServer()
    stores = [server.open_session(), server.open_session()]
    await initialise(stores[0])
    auditors = [Auditor(store, FakeLedgers(store, []), NOW, on_marked=lambda: None) for store in stores]
    runs = [asyncio.create_task(auditor.run()) for auditor in auditors]

    async def leaders(expected: list[bool]) -> None:
        await until(lambda: [bool(auditor.statistics()["is_leader"]) for auditor in auditors] == expected)

    await leaders([True, False])
    server.expire_session(stores[0].session_id)
    await leaders([False, True])
    for task in runs:
        task.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


async def test_a_session_that_nothing_could_be_begun_with_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
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
    await until(lambda: len(opened) >= 3)
    await auditor.stop()
    assert {store.state for store in opened} == {SessionState.LOST}


async def test_a_scan_sees_every_ledger() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    ledgers = FakeLedgers(store, [])
    ids = [0, 1, 9_999, 10_000, 123_456_789, 98_765_432_101]
    for ledger_id in ids:
        await ledgers.add(ledger(ledger_id, "a b c"))
    assert [each.ledger_id async for some in scan_ledgers(store, 2) for each in some] == ids
    assert [each.ledger_id for each in await all_ledgers(store)] == ids


@pytest.mark.parametrize(
    "setting", [{"lost_bookie_delay_ms": -1}, {"audit_interval_ms": 0}, {"task_retry_ms": 5, "task_retry_ms_max": 4}]
)
def test_settings_out_of_range_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        AuditorConfig(**setting)  # type: ignore[arg-type]
    assert caught.value.field in setting


async def test_ledgers_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(ledgers: Any, *others: Any) -> Any:
        sizes.append(len(ledgers))
        return ledgers_on(ledgers, *others)

    world = await World.started("b1 b2")
    for ledger_id in (7, 3, 4, 10_000_000_012, 1, 9, 10):
        await world.ledgers.add(ledger(ledger_id, "b1 b2 gone"))
    monkeypatch.setattr(index, "ROWS_PER_STEP", 3)  # I24
    monkeypatch.setattr(auditing, "ledgers_on", counted)
    assert (await world.auditor.audit())["marked"] == 7
    assert sizes == [3, 3, 1]
    assert await world.auditor.tasks.tasks() == [1, 3, 4, 7, 9, 10, 10_000_000_012]


async def test_of_many_ledgers_that_lack_copies_the_most_urgent_are_marked() -> None:
    world = await World.started("b1 b2", config=replace(NOW, tasks_outstanding_max=4))
    for ledger_id in range(2_500):
        await world.ledgers.add(ledger(ledger_id, "b1 lost gone" if ledger_id >= 2_495 else "b1 b2 gone"))
    assert (await world.auditor.audit())["marked"] == 4
    assert await world.auditor.tasks.tasks() == [2_495, 2_496, 2_497, 2_498]
    assert (await world.auditor.audit())["marked"] == 0


async def test_ledgers_of_bookies_that_are_away_do_not_keep_others_from_being_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auditing, "LOOKED_AT_MAX", 3)
    world = await World.started("live1 b2 b3")
    for ledger_id in range(1, 9):
        await world.ledgers.add(ledger(ledger_id, "live1 b2 b3" if ledger_id == 8 else "live1 b2 away"))
    world.ledgers.holes[8] = {"live1"}
    await world.auditor.tasks.set_enabled(True)
    for _ in range(3):
        await world.auditor.audit()
    assert 8 in await world.auditor.tasks.tasks()


async def test_risks_follow_ledgers_and_bookies() -> None:
    world = await World.started("b3")

    async def come(name: str, host: str) -> None:
        value = encode(BookieRegistration(name, f"{host}:3181"))
        await world.store.create(paths.bookie_available(name), value, ephemeral=True)

    async def risks() -> dict[str, int]:
        await world.auditor.audit()
        return dict((await read(world.store, paths.LEDGER_RISKS, LedgerRisks)).record.machines)

    await come("b1", "10.0.0.1")
    await come("b2", "10.0.0.1")
    for ledger_id in (1, 2):
        await world.ledgers.add(ledger(ledger_id, "b1 b2 b3", state=LedgerState.OPEN))
    assert await risks() == {"10.0.0.1": 2}
    await world.store.delete(paths.ledger(2))
    assert await risks() == {"10.0.0.1": 1}
    await world.store.delete(paths.bookie_available("b2"))
    await come("b2", "10.0.0.2")
    assert await risks() == {}
    await world.store.delete(paths.bookie_available("b3"))
    assert await risks() == {"10.0.0.1": 1, "10.0.0.2": 1}


GAUGES = {metric.name for metric in AUDITOR_METRICS if metric.is_rays}
URL = "memory://auditor-metrics"


async def test_what_is_for_ray_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}
    exported = asyncio.Event()

    class RecordedGauge:
        def __init__(self, name: str, tag_keys: tuple[str, ...]) -> None:
            self._name = name

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags == {"worker": "auditor"}
            values[self._name] = value
            if values.keys() == GAUGES:
                exported.set()

    monkeypatch.setattr(actor, "Gauge", RecordedGauge)
    await initialise(await connect_store(URL))
    auditor = AuditorActor(AuditorConfig(), URL)
    await auditor.start()
    await asyncio.wait_for(exported.wait(), 30)
    await auditor.stop()
