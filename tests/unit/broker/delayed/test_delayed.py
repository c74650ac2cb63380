"""Delayed entries: the index compared with a naive model, and a subscription over restarts."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.log import CursorLog, CursorPlace
from heliograph.actors.broker.cursor.recovery import create_cursor, recover_cursor
from heliograph.actors.broker.delayed import index as module
from heliograph.actors.broker.delayed.delivery import DelayedDelivery
from heliograph.actors.broker.delayed.index import DelayedIndex, Item
from heliograph.actors.broker.delayed.log import DELAYED_LEDGERS, DelayedLog
from heliograph.actors.broker.delayed.record import decode_run, encode_run
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_shared import KeySharedDispatcher
from heliograph.actors.broker.dispatch.shared import SharedDispatcher
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.errors import EntryDamagedError, QuorumLostError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import Policies
from tests.examples import examples
from tests.unit.broker.world import World, turns

pytestmark = pytest.mark.slow

RUN = 5


class IndexAgainstModel(RuleBasedStateMachine):
    """Entries are added, acknowledged and become due; runs are stored and read, fail, or are lost; the owner
    restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DelayedIndex()
        self.now = 0
        self.waiting: dict[int, int] = {}  # the model: entry -> due time
        self.all: dict[int, int] = {}
        self.stored: dict[Position, list[Item]] = {}
        self.keys = iter(range(100_000))
        self.entries = iter(range(100_000))
        self.storing: list[Item] | None = None

    @rule(delays=st.lists(st.integers(1, 50), min_size=1, max_size=12))
    def add(self, delays: list[int]) -> None:
        for delay in delays:
            entry = next(self.entries)
            self.index.add(entry, self.now + delay)
            self.waiting[entry] = self.all[entry] = self.now + delay

    @rule(which=st.integers(0, 1_000))
    def acknowledge(self, which: int) -> None:
        if self.waiting:
            entry = sorted(self.waiting)[which % len(self.waiting)]
            del self.waiting[entry]
            self.index.forget(entry)

    @rule(which=st.integers(0, 1_000))
    def skip(self, which: int) -> None:
        mark = which % (len(self.all) + 1) // 4
        self.waiting = {entry: due for entry, due in self.waiting.items() if entry >= mark}
        self.index.forget_below(mark)

    @rule(passed=st.integers(1, 60), limit=st.integers(1, 9))
    def pass_time(self, passed: int, limit: int) -> None:
        self.now += passed
        for _ in range(200):
            self.load()
            due = self.index.take_due(self.now, limit)
            for entry in due:
                assert self.waiting.pop(entry) <= self.now, "nothing is delivered before its time"
            if not due and (self.index.next_time() or self.now + 1) > self.now:
                break
        assert all(due > self.now for due in self.waiting.values()), "what is due is found"

    @precondition(lambda self: self.storing is None)
    @rule()
    def start_to_store(self) -> None:
        self.storing = self.index.take_run()

    @precondition(lambda self: self.storing is not None)
    @rule(succeeds=st.booleans())
    def end_storing(self, succeeds: bool) -> None:
        assert self.storing is not None
        if succeeds:
            key = Position(1, next(self.keys))
            self.stored[key] = self.storing
            self.index.stored(key, self.storing)
        else:
            self.index.not_stored()
        self.storing = None

    def load(self) -> None:
        while (load := self.index.take_load(self.now)) is not None:
            items = self.stored[load.run.key]
            stop = load.run.loaded + load.count
            if self.index.loaded(items[load.run.loaded : stop], items[stop][0] if stop < len(items) else None):
                del self.stored[load.run.key]

    @rule()
    def reading_fails_now(self) -> None:
        if self.index.take_load(self.now + 20) is not None:
            self.index.not_loaded(is_gone=False)

    @rule()
    def a_run_is_lost(self) -> None:
        load = self.index.take_load(self.now + 1_000)
        if load is None:
            return
        del self.stored[load.run.key]
        self.index.not_loaded(is_gone=True)
        self.stored.clear()
        while suspects := [entry for entry in self.index.take_due(self.now, 4) if entry in self.waiting]:
            for entry in suspects:  # read again: the entry itself has its delivery time
                if self.waiting[entry] > self.now:
                    self.index.add(entry, self.waiting[entry])
                else:
                    del self.waiting[entry]

    @precondition(lambda self: self.storing is None)
    @rule()
    def restart(self) -> None:
        self.index = DelayedIndex()
        for key, items in list(self.stored.items()):
            if not self.index.restore(key, items, lambda entry: entry in self.waiting):
                del self.stored[key]
        for entry, due in self.waiting.items():  # read again from the topic
            if entry not in self.index:
                self.index.add(entry, due)

    @invariant()
    def the_same_entries_wait(self) -> None:
        assert self.index.count == len(self.waiting)
        assert all(entry in self.index for entry in self.waiting)
        known = self.index.next_not_waiting(0)
        assert known not in self.waiting


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_ENTRIES_MAX", RUN)
    monkeypatch.setattr(module, "LOADED_MAX", 8)
    monkeypatch.setattr(module, "LOADED_MIN", 2)


def test_index_against_model() -> None:
    IndexAgainstModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
    IndexAgainstModel.TestCase("runTest").runTest()


def test_a_million_waiting_entries_are_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    index = DelayedIndex()
    for entry in range(1_000_000):
        index.add(entry, 1_000 + entry * 7_919 % 1_000_003)
        if (items := index.take_run()) is not None:
            index.stored(Position(1, entry), items)  # stored in a ledger, not in memory
    assert index.count == 1_000_000
    assert index.in_memory < module.RUN_ENTRIES_MAX  # I15
    assert sum(sys.getsizeof(bits) for _, bits in index._waiting.chunks()) < 1 << 20, "bytes for a million"


def test_a_run_is_stored_as_it_is_documented() -> None:
    chain = LedgerChain()
    chain.append(7, 10)
    chain.append(9, 10)
    items = [(1_000, 3), (2_000, 12), (3_000, 0)]
    record = encode_run(items, chain)
    assert decode_run(record, chain) == items
    chain.drop_before(9, 1, 10)
    assert decode_run(record, chain) == [None, (2_000, 12), None]  # trimmed away
    for damaged in (record[:11], b"\2" + record[1:], record[:-1] + bytes([record[-1] ^ 1])):
        with pytest.raises(EntryDamagedError):
            decode_run(damaged, chain)


class Scene:
    """A cursor on a topic of 1,000 entries, and its delayed delivery with a clock of the test."""

    def __init__(self, world: World, store: MemoryStore) -> None:
        self.world = world
        self.store = store
        self.now = 0
        self.wakes = 0
        self.chain = LedgerChain()
        self.chain.append(1, 1_000)

    def delays(self, cursor_log: CursorLog) -> DelayedDelivery:
        def wake() -> None:
            self.wakes += 1

        log = DelayedLog(cursor_log, self.chain, self.world.ledgers)
        return DelayedDelivery(self.chain, cursor_log.cursor, log, wake, lambda: self.now)

    async def open(self) -> tuple[CursorLog, DelayedDelivery]:
        place = CursorPlace("orders", "billing", "/cursor", Policies)
        if await self.store.exists("/cursor") is None:
            cursor_log = await create_cursor(place, 0, self.chain, self.store, self.world.ledgers, {"a": "b"})
        else:
            cursor_log = await recover_cursor(place, self.chain, self.store, self.world.ledgers)
        delays = self.delays(cursor_log)
        await turns(delays.ensure_loaded)
        return cursor_log, delays

    async def due(self, delays: DelayedDelivery, count: int) -> list[int]:
        found: list[int] = []

        def enough() -> bool:
            found.extend(delays.take_due())
            return len(found) >= count

        await turns(enough)
        return sorted(found)


@pytest.fixture
async def scene(world: World, store: MemoryStore) -> Scene:
    return Scene(world, store)


async def test_times_of_delivery_are_rounded_up_to_the_tick(scene: Scene) -> None:
    _, delays = await scene.open()
    delays.clock = lambda: 1_000
    assert delays.hold_back(0, 1_001, 500)
    assert delays.hold_back(1, 1_500, 500)
    assert not delays.hold_back(2, 1_000, 500)
    delays.clock = lambda: 1_499
    assert list(delays.take_due()) == []
    delays.clock = lambda: 1_500
    assert sorted(delays.take_due()) == [0, 1]


async def test_runs_survive_a_restart_and_their_ledger_goes_when_they_are_over(scene: Scene) -> None:
    cursor_log, delays = await scene.open()
    for entry in range(4 * RUN):
        assert delays.hold_back(entry, 100 + entry)
        await turns(lambda: delays._work is None)
    assert not delays.hold_back(900, 0)
    ledger_id = int(cursor_log.properties[DELAYED_LEDGERS])
    assert delays.index.in_memory < RUN
    cursor_log.cursor.acknowledge(7)
    await cursor_log.persist()
    cursor_log, again = await scene.open()  # the first owner crashed
    assert again.index.count == 4 * RUN - 1
    assert 7 not in again.index
    assert cursor_log.properties["a"] == "b"
    scene.now = 105
    assert await scene.due(again, 6) == [0, 1, 2, 3, 4, 5]
    scene.now = 1_000
    assert await scene.due(again, 4 * RUN - 7) == [6, *range(8, 4 * RUN)]
    await turns(lambda: ledger_id not in scene.world.ledgers.ledgers)
    assert DELAYED_LEDGERS not in cursor_log.properties
    await again.close()


async def test_what_cannot_be_stored_stays_in_memory_and_is_stored_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.delayed.delivery.RETRY_SECONDS", 0.0)
    cursor_log, delays = await scene.open()
    scene.world.ledgers.fail_create = QuorumLostError("no bookies")
    for entry in range(2 * RUN):
        assert delays.hold_back(entry, 100)
    await turns(lambda: scene.wakes > 0 and delays._work is None)
    assert delays.index.in_memory == 2 * RUN
    scene.world.ledgers.fail_create = None
    delays.take_due()
    await turns(lambda: delays.index.in_memory < RUN)
    assert DELAYED_LEDGERS in cursor_log.properties
    scene.now = 100
    assert await scene.due(delays, 2 * RUN) == list(range(2 * RUN))
    await delays.close()


async def test_a_lost_ledger_costs_reading_and_no_entry(scene: Scene) -> None:
    cursor_log, delays = await scene.open()
    for entry in range(2 * RUN):
        assert delays.hold_back(entry, 100)
        await turns(lambda: delays._work is None)
    ledger_id = int(cursor_log.properties[DELAYED_LEDGERS])
    await scene.world.ledgers.delete(ledger_id)
    _, again = await scene.open()
    assert again.index.count == 0  # each entry is read when its turn comes
    scene.now = 100
    assert await scene.due(delays, 2 * RUN) == list(range(2 * RUN))  # while the owner lives: read at once
    await delays.close()


END = 60


class Loop:
    """The delivery loop of a subscription with a dispatcher and the index, with a clock of the test."""

    def __init__(self, dispatcher: SharedDispatcher | KeySharedDispatcher, index: DelayedIndex, due: list[int]) -> None:
        self.dispatcher = dispatcher
        self.index = index
        self.due = due
        self.now = 0
        self.delivered: list[int] = []

    def pump(self) -> None:
        self.dispatcher.make_due(self.index.take_due(self.now, 1_000))
        while (entry := self.dispatcher.next_wanted(END)) is not None:
            if self.due[entry] > self.now:
                self.index.add(entry, self.due[entry])
                self.dispatcher.skip(entry)
                continue
            key = b"k%d" % (entry % 5)
            made = TopicEntry(b"x", 1, False, False, None, False, 0, key)
            if self.dispatcher.deliver(entry, made, 1) is not None:
                self.delivered.append(entry)


@pytest.mark.parametrize("kind", [SharedDispatcher, KeySharedDispatcher])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_dispatchers_hold_back_what_waits_and_nothing_else(
    kind: type[SharedDispatcher | KeySharedDispatcher], data: st.DataObject
) -> None:
    due = data.draw(st.lists(st.sampled_from([0, 0, 5, 10, 20]), min_size=END, max_size=END))
    cursor, index = Cursor(0), DelayedIndex()
    loop = Loop(kind(cursor, index), index, due)
    consumers = [ConsumerState(number, f"c{number}", permits=10) for number in range(2)]
    for consumer in consumers:
        loop.dispatcher.add(consumer)
    steps = st.sampled_from(["time", "flow", "ack", "nack", "rewind", "skip", "swap"])
    for step in data.draw(st.lists(steps, max_size=30)):
        one = consumers[data.draw(st.integers(0, 1))]
        if step == "time":
            loop.now += 4
        elif step == "flow":
            one.flow(7)
        elif step == "ack":
            for entry in list(one.pending)[::2]:
                cursor.acknowledge(entry)
                loop.dispatcher.acknowledged(entry)
        elif step == "nack":
            loop.dispatcher.redeliver(one, dict.fromkeys(list(one.pending)[::2], 0))
        elif step == "rewind":
            loop.dispatcher.rewind()
        elif step == "skip":
            mark = min(cursor.mark + 3, END)
            cursor.skip_to(mark)
            loop.dispatcher.acknowledged_up_to(mark - 1)
            index.forget_below(mark)
        else:
            loop.dispatcher.remove(one)
            loop.dispatcher.add(one)
        loop.pump()
        held = [entry for consumer in consumers for entry in consumer.pending]
        assert len(held) == len(set(held))
        assert all(due[entry] <= loop.now for entry in held), "nothing comes before its time"
    loop.pump()
    if kind is SharedDispatcher and all(consumer.permits > 0 for consumer in consumers):
        open_now = [entry for entry in range(END) if not cursor.is_acknowledged(entry) and due[entry] <= loop.now]
        assert set(open_now) <= {entry for consumer in consumers for entry in consumer.pending}, "nobody is blocked"
    loop.now = 100
    for _ in range(3 * END):
        for consumer in consumers:
            consumer.flow(100 - consumer.permits)
            for entry in list(consumer.pending):
                cursor.acknowledge(entry)
                loop.dispatcher.acknowledged(entry)
        loop.pump()
    assert cursor.mark == END, "everything is delivered in the end"
    assert index.count == 0
