"""Durability of acknowledgements: one write in flight, snapshots, crashes and takeovers (I11)."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.broker.cursor import log as module
from heliograph.actors.broker.cursor.log import CursorLog, CursorPlace
from heliograph.actors.broker.cursor.recovery import create_cursor, recover_cursor
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.message_count import NOTHING_COUNTED
from heliograph.actors.errors import LedgerFencedError, NotEnoughBookiesError, QuorumLostError
from heliograph.base.errors import HeliographError, PersistenceError, ServiceNotReadyError
from heliograph.metadata import codec
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.model import CursorRecord, Policies
from tests.unit.broker.world import World, turns

PLACE = CursorPlace("orders", "billing", "/cursor", Policies)


class Scene:
    """A chain of two ledgers with 5,000 entries each, and a cursor on it."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.world = world
        self.store = store
        self.chain = LedgerChain()
        self.chain.append(1, 5_000)
        self.chain.append(2, 5_000)

    async def create(self) -> CursorLog:
        return await create_cursor(PLACE, 0, self.chain, self.store, self.world.ledgers, {})

    async def take_over(self) -> CursorLog:
        return await recover_cursor(PLACE, self.chain, self.world.server.open_session(), self.world.ledgers)

    def open(self, log: CursorLog) -> list[int]:
        return [index for index in range(self.chain.end) if not log.cursor.is_acknowledged(index)]

    def writes(self, log: CursorLog) -> int:
        return len(self.world.ledgers.ledgers[log.ledger_id].entries)


@pytest.fixture
async def scene(world: World, store: MemoryStore) -> Scene:
    return Scene(world, store)


async def test_what_was_confirmed_is_there_after_a_crash(scene: Scene) -> None:
    log = await scene.create()
    for index in (0, 1, 5, 4_999, 5_000, 9_999):
        log.cursor.acknowledge(index)
        await log.persist()
    log.cursor.acknowledge_messages(7, 0b0110)
    await log.persist()
    again = await scene.take_over()
    assert scene.open(again) == scene.open(log)
    assert again.cursor.mark == 2
    assert again.cursor.unacknowledged_bits(7) == 0b0110


async def test_redelivery_counts_are_there_after_a_crash(scene: Scene) -> None:
    """Written with a delta or with a snapshot; a seek and the acknowledgement of the entry end a count."""
    log = await scene.create()
    for index in (0, 0, 5, 5_000, 5_000, 9_999):
        log.cursor.count_redelivery(index)
    await log.persist()  # in the snapshot that begins the ledger
    log.cursor.count_redelivery(5_000)
    log.cursor.acknowledge(5)
    await log.persist()  # in a delta
    again = await scene.take_over()
    assert dict(again.cursor.refused.items()) == {0: (2, 0), 5_000: (3, 0), 9_999: (1, 0)}
    again.cursor.acknowledge(0)
    await again.persist()
    again = await scene.take_over()
    assert dict(again.cursor.refused.items()) == {5_000: (3, 0), 9_999: (1, 0)}
    again.cursor.reset(0)
    again.cursor.count_redelivery(1)
    await again.persist()
    assert dict((await scene.take_over()).cursor.refused.items()) == {1: (1, 0)}


@pytest.mark.parametrize("passes", range(12))
async def test_a_cursor_can_be_deleted_while_its_first_ledger_is_being_named(scene: Scene, passes: int) -> None:
    """The record has then a version that this broker has not heard of, because the write was cancelled."""
    log = await scene.create()
    log.cursor.acknowledge(0)
    log.persist()
    for _ in range(passes):
        await asyncio.sleep(0)
    await log.delete()
    assert await scene.store.exists(PLACE.path) is None


async def test_a_cancelled_write_does_not_hide_the_write_of_another_owner(scene: Scene) -> None:
    log = await scene.create()
    writing = asyncio.create_task(log.set_properties({"team": "billing"}))
    await asyncio.sleep(0)
    writing.cancel()
    await scene.take_over()
    with pytest.raises(ServiceNotReadyError):
        await log.delete()
    assert await scene.store.exists(PLACE.path) is not None


async def test_one_write_is_in_flight_and_the_rest_goes_together(scene: Scene) -> None:
    log = await scene.create()
    log.cursor.acknowledge(0)
    await log.persist()
    scene.world.ledgers.held = True
    before = scene.writes(log)
    futures = []
    for index in range(1, 2_001):
        log.cursor.acknowledge(index)
        futures.append(log.persist())
    assert scene.writes(log) == before + 1
    writer = scene.world.ledgers.writers[log.ledger_id]
    writer.release()
    await turns(lambda: futures[0].done() and scene.writes(log) == before + 2)
    assert not futures[1].done()  # I11: confirmed only when durable
    writer.release()
    await turns(lambda: futures[-1].done())
    await log.persist()  # nothing is left to write
    assert scene.writes(log) == before + 2


async def test_unconfirmed_acknowledgements_may_be_lost_and_only_those(scene: Scene) -> None:
    log = await scene.create()
    log.cursor.acknowledge(3)
    await log.persist()
    scene.world.ledgers.held = True
    log.cursor.acknowledge(4)
    future = log.persist()
    again = await scene.take_over()
    assert again.cursor.is_acknowledged(3)
    assert not again.cursor.is_acknowledged(4)
    await turns(future.done)
    assert isinstance(future.exception(), LedgerFencedError)  # I13: the old owner confirms nothing


@pytest.mark.parametrize("parts_kept", [0, 1, 2])
async def test_a_snapshot_that_was_cut_short_changes_nothing(
    scene: Scene, parts_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_BYTES_MIN", 0)
    monkeypatch.setattr("heliograph.actors.broker.cursor.record.PART_ITEMS_MAX", 2)
    log = await scene.create()
    for index in range(1, 10_000, 1_000):
        log.cursor.acknowledge(index)
        await log.persist()
    confirmed = scene.open(log)
    scene.world.ledgers.held = True
    log._delta_bytes = 1 << 20  # a snapshot is due
    log.cursor.acknowledge(2)
    log.persist()
    ledger = scene.world.ledgers.ledgers[log.ledger_id]
    await turns(lambda: len(ledger.entries) - ledger.confirmed - 1 > 2)  # it comes in several parts
    scene.world.ledgers.recovery_keeps = parts_kept
    again = await scene.take_over()
    assert scene.open(again) == confirmed
    scene.world.ledgers.held = False
    again.cursor.acknowledge(6)
    await again.persist()
    assert scene.open(await scene.take_over()) == [index for index in confirmed if index != 6]


async def test_snapshots_bound_what_recovery_reads(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_BYTES_MIN", 200)
    monkeypatch.setattr(module, "LEDGER_ENTRIES_MAX", 300)
    log = await scene.create()
    ledgers = set()
    for index in range(1, 2_000, 2):
        log.cursor.acknowledge(index)
        await log.persist()
        ledgers.add(log.ledger_id)
    assert log._base > 0
    assert len(ledgers) > 2
    await turns(lambda: len(scene.world.ledgers.ledgers) == 1)  # old cursor ledgers are deleted
    assert scene.open(await scene.take_over()) == scene.open(log)


async def test_seek_back_survives(scene: Scene) -> None:
    log = await scene.create()
    log.cursor.skip_to(8_001)
    await log.persist()
    log.cursor.reset(10)
    log.cursor.acknowledge(12)
    await log.persist()
    again = await scene.take_over()
    assert again.cursor.mark == 10
    assert again.cursor.is_acknowledged(12)
    assert not again.cursor.is_acknowledged(11)


async def test_a_failed_write_moves_to_a_new_ledger_with_everything(scene: Scene) -> None:
    log = await scene.create()
    log.cursor.acknowledge(1)
    await log.persist()
    first = log.ledger_id
    scene.world.ledgers.held = True
    log.cursor.acknowledge(2)
    future = log.persist()
    scene.world.ledgers.held = False
    scene.world.ledgers.writers[first].fail(QuorumLostError("gone"))
    log.cursor.acknowledge(3)
    await asyncio.gather(future, log.persist())
    assert log.ledger_id != first
    assert scene.open(await scene.take_over()) == scene.open(log)


async def test_when_bookies_refuse_acks_fail_and_later_ones_carry_all(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROLL_DELAY_S", 0.0)
    log = await scene.create()
    scene.world.ledgers.fail_create = NotEnoughBookiesError("none")
    log.cursor.acknowledge(1)
    with pytest.raises(PersistenceError):
        await log.persist()
    scene.world.ledgers.fail_create = None
    await log.persist()  # nothing new was acknowledged, but what failed is not durable yet
    assert (await scene.take_over()).cursor.is_acknowledged(1)


async def test_a_previous_owner_cannot_start_a_new_cursor_ledger(scene: Scene) -> None:
    """If the takeover did not move the version, the next acknowledgement would be confirmed and then lost."""
    old = await scene.create()  # no ledger yet: nothing that could be fenced
    lost: list[HeliographError] = []
    old.on_lost = lost.append
    await scene.take_over()
    old.cursor.acknowledge(0)
    with pytest.raises(LedgerFencedError):  # I13
        await old.persist()
    assert lost


async def test_a_lost_cursor_ledger_falls_back_to_the_mark_in_metadata(scene: Scene) -> None:
    log = await scene.create()
    log.cursor.skip_to(100)
    await log.persist()
    log.cursor.skip_to(200)
    await log.persist()
    del scene.world.ledgers.ledgers[log.ledger_id]
    assert (await scene.take_over()).cursor.mark == 100


async def test_creating_twice_and_deleting(scene: Scene) -> None:
    log = await scene.create()
    with pytest.raises(NodeExistsError):
        await scene.create()
    log.cursor.acknowledge(0)
    await log.persist()
    value, _ = await scene.store.get("/cursor")
    assert codec.decode(CursorRecord, value).cursor_ledger_id == log.ledger_id
    await log.delete()
    assert scene.world.ledgers.ledgers == {}
    assert await scene.store.exists("/cursor") is None


async def test_messages_are_counted_again_where_older_ones_were_trimmed(scene: Scene) -> None:
    """The mark in memory had passed them, and the durable one had not."""
    scene.chain.count = NOTHING_COUNTED
    log = await scene.create()
    log.cursor.end_count(log.cursor.begin_count(), 0)
    log.cursor.acknowledge(6_000, messages=3)
    await log.persist()
    assert (await scene.take_over()).cursor.acknowledged_messages == 3
    scene.chain.drop_before(2, 1, 5_000)
    assert (await scene.take_over()).cursor.acknowledged_messages is None
