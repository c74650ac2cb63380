"""The index counts a topic's messages without gaps and repeats, over rollovers, failures, takeovers and trimming."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.records.entry_stamp import NEXT_INDEX
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication
from heliograph.actors.errors import QuorumLostError
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, StorageFullError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.entry import broker_metadata_of, broker_metadata_size
from heliograph.protocol.pulsar_pb2 import BrokerEntryMetadata
from tests.unit.broker.world import World, entry, turns


class Run:
    """A topic that is published to. Each entry is the text of its number of messages."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.world = world
        self.store = store
        self.confirmed: dict[Position, int] = {}
        self.failed = 0

    async def open(self, setting: str = "index") -> ManagedLedger:
        self.world.entry_metadata = setting
        return await self.world.open(await self.world.session())

    def publish(self, ledger: ManagedLedger, *counts: int) -> None:
        for count in counts:
            ledger.add(entry(str(count), count), _Publication(self, count))

    def stored(self, ledger: ManagedLedger) -> list[tuple[BrokerEntryMetadata, int]]:
        """Return the broker's metadata and the number of messages of each entry of the chain."""
        payloads = [
            payload
            for ledger_id in ledger.chain.ledger_ids
            for payload in self.world.ledgers.ledgers[ledger_id].entries[: ledger.chain.entries_in(ledger_id)]
        ]
        return [(broker_metadata_of(one), int(one[broker_metadata_size(one) :])) for one in payloads]

    def check(self, ledger: ManagedLedger, first: int = 0) -> None:
        """Check that the messages of the chain have the indexes from ``first`` on, and that entries count them."""
        end = first
        for metadata, count in self.stored(ledger):
            end += count
            assert (metadata.index, metadata.messages) == (end - 1, end)
        assert ledger.messages == end


class _Publication(Publication):
    def __init__(self, run: Run, count: int) -> None:
        self._run = run
        self._count = count

    def confirmed(self, position: Position) -> None:
        self._run.confirmed[position] = self._count

    def failed(self, error: HeliographError) -> None:
        self._run.failed += 1

    def delayed(self, error: HeliographError) -> None:
        raise AssertionError(error)


@pytest.fixture
async def here(world: World, store: MemoryStore) -> Run:
    return Run(world, store)


@pytest.mark.parametrize("setting", ["none", "time", "index", "both"])
async def test_every_entry_has_its_time_and_on_request_its_index(here: Run, setting: str) -> None:
    ledger = await here.open(setting)
    before = wall_ms()
    here.publish(ledger, 1, 5)
    await turns(lambda: len(here.confirmed) == 2)
    has_index = setting in ("index", "both")
    for (metadata, _), index in zip(here.stored(ledger), (0, 5), strict=True):
        assert metadata.HasField("index") == has_index
        assert before <= metadata.broker_timestamp <= wall_ms()
        assert not has_index or metadata.index == index
    first = here.world.ledgers.ledgers[ledger.writer.ledger_id].entries[0]
    assert first[broker_metadata_size(first) :] == b"1"  # the producer's bytes follow unchanged
    assert (NEXT_INDEX in ledger.record.properties) == has_index


@pytest.mark.parametrize("found", [0, 1, 2])
async def test_entries_that_are_added_again_keep_their_index(here: Run, found: int) -> None:
    ledgers = here.world.ledgers
    ledger = await here.open()
    here.publish(ledger, 2)
    await turns(lambda: len(here.confirmed) == 1)
    first = ledger.writer.ledger_id
    ledgers.held, ledgers.recovery_keeps = True, found
    here.publish(ledger, 3, 4)
    ledgers.held = False
    ledgers.writers[first].fail(QuorumLostError("two bookies died"))
    await turns(lambda: ledger.state is WriteState.RECOVERING)
    here.publish(ledger, 5)
    await turns(lambda: len(here.confirmed) == 4)
    assert [metadata.index for metadata, _ in here.stored(ledger)] == [1, 4, 8, 13]


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_the_next_owner_goes_on_after_the_last_entry_that_was_stored(here: Run, kept: int) -> None:
    """The previous owner crashed: what recovery finds of its last entries keeps its index, the rest never had one."""
    old = await here.open()
    here.publish(old, 2, 2)
    await turns(lambda: len(here.confirmed) == 2)
    here.world.ledgers.held, here.world.ledgers.recovery_keeps = True, kept
    here.publish(old, 3, 3)
    here.world.ledgers.held = False
    new = await here.open()
    here.publish(new, 1)
    await turns(lambda: len(here.confirmed) == 3)
    assert [metadata.index for metadata, _ in here.stored(new)] == [*(1, 3, 6, 9)[: 2 + kept], 4 + 3 * kept]


async def test_a_topic_whose_entries_were_all_trimmed_remembers_the_index(here: Run) -> None:
    ledger = await here.open()
    here.publish(ledger, 7)
    await turns(lambda: len(here.confirmed) == 1)
    await ledger.roll()
    await turns(lambda: ledger.chain.last_ledger_id == ledger.writer.ledger_id and not ledger._is_rolling)
    ledger.policies = replace(ledger.policies, retention_seconds=0)
    assert await ledger.trim(lambda: 1 << 60, wall_ms()) == 1
    new = await here.open()  # after a crash
    assert new.chain.end == 0
    here.publish(new, 1)
    await turns(lambda: len(here.confirmed) == 2)
    here.check(new, first=7)


async def test_entries_that_failed_when_the_topic_was_closed_have_no_index(here: Run) -> None:
    ledger = await here.open()
    here.publish(ledger, 2)
    await turns(lambda: len(here.confirmed) == 1)
    here.world.ledgers.fail_adds = QuorumLostError("gone")
    here.publish(ledger, 9)
    ledger.lose(QuorumLostError("gone"))
    assert here.failed == 1
    here.world.ledgers.fail_adds = None
    new = await here.open()
    here.publish(new, 1)
    await turns(lambda: len(here.confirmed) == 2)
    here.check(new)


async def test_a_broker_that_does_not_count_keeps_the_index_for_the_next_one_that_does(here: Run) -> None:
    """The first owner crashes after its record was stored, so that only its last entry has the index."""
    old = await here.open("both")
    here.publish(old, 4, 4)
    await turns(lambda: len(here.confirmed) == 2)
    assert old.record.properties[NEXT_INDEX] == "0"
    for setting in ("none", "time"):
        silent = await here.open(setting)
        here.publish(silent, 3)
        await turns(lambda: len(here.confirmed) > 2)
        assert not here.stored(silent)[-1][0].HasField("index")
    new = await here.open("index")
    here.publish(new, 2)
    await turns(lambda: len(here.confirmed) == 5)
    assert here.stored(new)[-1][0].index == 9  # it counts the messages that were published while one counted


async def test_counting_begins_at_0_in_a_topic_that_has_older_entries(here: Run) -> None:
    old = await here.open("none")
    here.publish(old, 4)
    await turns(lambda: len(here.confirmed) == 1)
    new = await here.open("index")
    here.publish(new, 2)
    await turns(lambda: len(here.confirmed) == 2)
    assert [metadata.index for metadata, _ in here.stored(new)] == [0, 1]


@pytest.mark.parametrize("ending", ["all found", "some found", "refused"])
async def test_messages_are_counted_once_when_a_ledger_failed(
    here: Run, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names the end of a ledger before what recovery found is confirmed. What is refused is not counted."""
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RECOVER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    ledgers, ledger = here.world.ledgers, await here.open()
    ledgers.held, ledgers.recovery_keeps = True, 1 + (ending == "all found")
    ledgers.fail_create = StorageFullError("storage is full") if ending == "refused" else None
    here.publish(ledger, 3, 4)
    ledgers.held = False
    ledgers.writers[ledger.writer.ledger_id].fail(QuorumLostError("gone"))
    await turns(lambda: len(here.confirmed) + here.failed == 2)
    assert here.failed == (ending == "refused")
    ledgers.fail_create = None
    await turns(lambda: ledger.state is WriteState.WRITING)
    if ending == "refused":
        here.publish(ledger, 5)
        await turns(lambda: ledger.pending == 0)
    for _ in range(2):
        here.check(ledger)
        ledger = await here.open()


@pytest.mark.parametrize("seed", range(30))
async def test_indexes_have_no_gap_and_no_repeat_whatever_happens(here: Run, seed: int) -> None:
    chance = random.Random(seed)
    ledgers = here.world.ledgers
    here.world.policies = replace(here.world.policies, ledger_entries_max=chance.choice((2, 3, 50)))
    ledger = await here.open()
    for _ in range(40):
        turn = chance.random()
        if turn < 0.6:
            here.publish(ledger, *(chance.choice((1, 1, 3)) for _ in range(chance.randrange(1, 4))))
            ledgers.held = chance.random() < 0.3
        elif turn < 0.7 and not getattr(ledger.writer, "is_over", True):
            ledgers.recovery_keeps = chance.randrange(3)
            ledgers.writers[ledger.writer.ledger_id].fail(QuorumLostError("gone"))
        elif turn < 0.8:
            ledgers.held, ledgers.recovery_keeps = False, chance.randrange(3)
            ledger = await here.open()  # the owner before crashed, or knows nothing yet
        elif turn < 0.9:
            ledgers.held = False
            ledgers.writers[ledger.writer.ledger_id].release()
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
    ledgers.held = False
    for writer in list(ledgers.writers.values()):
        writer.release()
    await turns(lambda: ledger.pending == 0)
    here.check(ledger)
    assert set(here.confirmed) <= {ledger.chain.position_at(at) for at in range(ledger.chain.end)}
