"""Snapshots of deduplication: their bytes, takeover, what they keep from trimming, and what damage leaves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.dedup import record as dedup_record
from heliograph.actors.broker.dedup.dedup import Remembered, StoredChunks
from heliograph.actors.broker.dedup.log import DEDUP_CURSOR, DedupLog, create_dedup, recover_dedup
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.producer import PublishRequest, TopicProducer
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError
from heliograph.base.errors import HeliographError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryStore
from tests.previous_release import unpack_previous
from tests.unit.broker.producers.test_access import Channel
from tests.unit.broker.topic_world import topic_on
from tests.unit.broker.world import Outcomes, World, entry, turns

MANY = [Remembered(f"p{number}", number, number) for number in range(dedup_record.PART_PRODUCERS_MAX + 5)]


@given(
    st.lists(
        st.builds(Remembered, st.text(max_size=20), st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 50))
        | st.builds(
            StoredChunks,
            st.text(max_size=20),
            st.binary(max_size=16),
            st.integers(0, (1 << 64) - 1),
            st.integers(0, 1 << 31),
            st.integers(0, 1 << 50),
        )
    ),
    st.integers(0, 1 << 62),
    st.integers(-1, 1 << 40),
)
def test_records_keep_what_they_are_given(snapshot: list[Remembered | StoredChunks], ledger_id: int, base: int) -> None:
    (record,) = dedup_record.encode(snapshot, Position(ledger_id, 7), base)
    assert dedup_record.decode(record) == dedup_record.DedupPart(base, 0, 1, Position(ledger_id, 7), tuple(snapshot))
    for place in range(0, len(record), 7):
        damaged = bytearray(record)
        damaged[place] ^= 1
        if place not in (1, 2, 3):  # zeros, which are ignored
            with pytest.raises(EntryDamagedError):
                dedup_record.decode(bytes(damaged))


def test_a_name_that_is_not_text_is_no_structure() -> None:
    """D21: protobuf hands a client's text that is not UTF-8 on as bytes, here those of a row of chunks."""
    hostile: str = msgpack.packb(("victim", b"x" * 16, 1 << 30))
    (record,) = dedup_record.encode([Remembered(hostile, 1, 2)], Position(1, 2), -1)
    (found,) = dedup_record.decode(record).producers
    assert isinstance(found, Remembered)
    assert (found.persisted, found.active_ms) == (1, 2)


def test_the_previous_release_reads_rows_of_chunks(tmp_path: Path) -> None:
    """It keeps them as producers that never connect, and hands them on as they are."""
    unpack_previous(tmp_path / "previous")
    snapshot: list[Remembered | StoredChunks] = [Remembered("a", 4, 2), StoredChunks("a", b"m" * 16, 5, 3, 2)]
    (data,) = dedup_record.encode(snapshot, Position(1, 2), -1)
    program = """
import importlib.util, sys, pathlib
root = pathlib.Path(sys.argv[1])
import types
package = types.ModuleType("heliograph"); package.__path__ = [str(root / "heliograph"), str(root)]
sys.modules["heliograph"] = package
from heliograph.actors.broker.dedup import record
from heliograph.actors.broker.dedup.dedup import Deduplication
assert record.__file__.startswith(str(root))
part = record.decode(bytes.fromhex(sys.argv[2]))
core = Deduplication()
core.restore(part.producers)
print(record.encode(core.snapshot(), part.position, -1)[0].hex())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "previous"), data.hex()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert list(dedup_record.decode(bytes.fromhex(done.stdout)).producers) == snapshot


def test_a_large_snapshot_has_parts() -> None:
    parts = [dedup_record.decode(record) for record in dedup_record.encode(MANY, Position(1, 2), 4)]
    assert [(part.part, part.parts, part.completes_snapshot) for part in parts] == [(0, 2, False), (1, 2, True)]
    assert [one for part in parts for one in part.producers] == MANY


def place_in(world: World, ledger: ManagedLedger) -> CursorPlace:
    topic = world.topic
    path = paths.topic(topic.tenant, topic.namespace_name, topic.local_name)
    return CursorPlace(str(topic), DEDUP_CURSOR, paths.cursor(path, DEDUP_CURSOR), lambda: ledger.policies)


async def published(ledger: ManagedLedger, count: int) -> None:
    outcomes = Outcomes()
    outcomes.publish(ledger, *(f"m{number}" for number in range(count)))
    await turns(lambda: len(outcomes.confirmed) == count)


async def written(log: DedupLog, snapshot: Sequence[Remembered | StoredChunks]) -> None:
    log.write(snapshot)
    await log.settled()


async def test_the_newest_whole_snapshot_is_found() -> None:
    world = World()
    store = await world.session()
    ledger = await world.open(store)
    log = await create_dedup(place_in(world, ledger), ledger.chain, store, world.ledgers)
    await published(ledger, 3)
    await written(log, MANY)
    await published(ledger, 2)
    await written(log, [Remembered("a", 1, 2)])
    assert log.mark == 5
    await published(ledger, 4)
    dedup_ledger = world.ledgers.ledgers[max(world.ledgers.ledgers)]
    unfinished = dedup_record.encode(MANY, Position(99, 99), 2)[0]
    dedup_ledger.entries.append(unfinished)  # a crash in the middle of the third
    world.ledgers.recovery_keeps = 1

    heir = await world.session()
    after = await world.open(heir)
    found, snapshot = await recover_dedup(place_in(world, after), after.chain, heir, world.ledgers)
    assert (found.mark, snapshot) == (5, (Remembered("a", 1, 2),))
    lost: list[Exception] = []
    log.on_lost = lost.append
    await written(log, [])  # the previous owner cannot go on
    assert len(lost) == 1
    await written(found, [Remembered("b", 3, 4)])
    assert found.mark == after.chain.end == 9
    again, snapshot = await recover_dedup(place_in(world, after), after.chain, heir, world.ledgers)
    assert (again.mark, snapshot) == (9, (Remembered("b", 3, 4),))
    await again.delete()
    assert dedup_ledger.metadata.ledger_id in world.ledgers.deleted
    assert await heir.exists(place_in(world, after).path) is None


async def test_damage_leaves_the_mark_of_the_record() -> None:
    world = World()
    store = await world.session()
    ledger = await world.open(store)
    log = await create_dedup(place_in(world, ledger), ledger.chain, store, world.ledgers)
    await published(ledger, 3)
    await written(log, [Remembered("a", 1, 2)])
    world.ledgers.ledgers[max(world.ledgers.ledgers)].entries[0] = b"?" * 40
    found, snapshot = await recover_dedup(place_in(world, ledger), ledger.chain, store, world.ledgers)
    assert (found.mark, snapshot) == (3, ())  # where that ledger was started


async def test_a_snapshot_that_fails_is_written_later() -> None:
    world = World()
    store = await world.session()
    ledger = await world.open(store)
    log = await create_dedup(place_in(world, ledger), ledger.chain, store, world.ledgers)
    await published(ledger, 2)
    world.ledgers.fail_create = EntryDamagedError("no ledger now")
    await written(log, [Remembered("a", 1, 2)])
    assert log.mark == 0
    world.ledgers.fail_create = None
    await written(log, [Remembered("a", 1, 2)])
    assert log.mark == 2


async def test_a_terminated_topic_stays_so_for_the_next_owner() -> None:
    world = World()
    store = await world.session()
    ledger = await world.open(store)
    outcomes = Outcomes()
    world.ledgers.held = True
    outcomes.publish(ledger, "a", "b")
    ending = asyncio.create_task(ledger.terminate())
    await turns(lambda: ledger.state is WriteState.DRAINING)
    outcomes.publish(ledger, "late")
    world.ledgers.held = False
    world.ledgers.writers[ledger.writer.ledger_id].release()
    last = await ending
    assert last == outcomes.confirmed[-1][1]
    assert outcomes.texts == ["a", "b"]
    assert [(text, type(error).__name__) for text, error in outcomes.failed] == [("late", "TopicTerminatedError")]
    assert await ledger.terminate() == last
    assert await ledger.trim(lambda: 1 << 62, 1) == 0  # the last ledger stays (I14)

    heir = await world.session()
    after = await world.open(heir)
    assert after.state is WriteState.TERMINATED
    assert world.contents(after) == ["a", "b"]
    assert await after.terminate() == last
    outcomes.publish(after, "never")
    assert outcomes.failed[-1][0] == "never"
    await after.close()
    assert len(world.ledgers.ledgers) == 1  # no ledger was made for it


async def test_a_topic_whose_end_is_lost_goes_on() -> None:
    """The owner crashes after it closed the ledger and before it stored the termination: nothing was decided."""
    world = World()
    store = await world.session()
    ledger = await world.open(store)
    await published(ledger, 2)
    heir = await world.session()
    taken = await world.open(heir)  # meanwhile
    with pytest.raises(HeliographError):
        await ledger.terminate()
    assert ledger.state is WriteState.CLOSED
    await published(taken, 1)
    assert taken.record == replace(taken.record, terminated_at=None)


async def test_what_is_confirmed_after_deduplication_was_turned_off_takes_no_snapshot(
    world: World, store: MemoryStore
) -> None:
    """Its log is deleted: a write would look like another broker's takeover, and the topic would be lost."""
    world.policies = replace(world.policies, deduplication=True, deduplication_snapshot_entries=2)
    topic = await topic_on(world, store)
    producer = TopicProducer(1, "p", 0, Channel())
    await topic.admission.admit(producer, "b")
    world.ledgers.held = True
    for number in range(4):
        topic.admission.send(entry(str(number)), PublishRequest(producer, number, number, 1, 1))
    topic.apply_policies(replace(world.policies, deduplication=False))
    await turns(lambda: not topic.admission.dedup._tasks)
    assert topic.admission.dedup.current is None
    world.ledgers.held = False
    topic.ledger.writer.release()  # type: ignore[attr-defined]
    await turns(lambda: producer.settled == 4)
    for _ in range(20):
        await asyncio.sleep(0)
    assert topic.is_open
    assert world.ledgers.kept_writers == ["topic"]
