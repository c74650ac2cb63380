"""Dispatchers against naive models: which consumer got each entry, which entries are missing, and their order."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.dispatch.shared import SharedDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry

END = 60
PARTITION = 1
places = st.integers(0, 3)  # of a consumer among those connected


def messages_of(index: int) -> int:
    return 1 + index % 3


def entry_of(index: int) -> TopicEntry:
    return TopicEntry(b"x", messages_of(index), messages_of(index) > 1, False, None, False, 0, b"")


class SharedAgainstModel(RuleBasedStateMachine):
    """The model keeps for each entry whether it is acknowledged, where it is pending, and how often it came back."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.dispatcher = SharedDispatcher(self.cursor)
        self.numbers = itertools.count()
        self.connected: list[ConsumerState] = []
        self.holder: dict[int, ConsumerState] = {}
        self.delivered: set[int] = set()  # since the last time without consumers
        self.returns: dict[int, int] = {}
        self.acknowledged: set[int] = set()

    @rule(priority=st.integers(0, 1), permits=st.integers(0, 6))
    def join(self, priority: int, permits: int) -> None:
        if len(self.connected) < 4:
            number = next(self.numbers)
            one = ConsumerState(number, f"c{number}", priority, permits)
            self.dispatcher.add(one)
            self.connected.append(one)
            self.pump()

    @rule(place=places)
    def leave(self, place: int) -> None:
        if place >= len(self.connected):
            return
        one = self.connected.pop(place)
        self.dispatcher.remove(one)
        self.holder = {index: holder for index, holder in self.holder.items() if holder is not one}
        if not self.connected:  # everything starts over
            self.delivered.clear()
        self.pump()

    @rule(place=places, permits=st.integers(1, 20))
    def flow(self, place: int, permits: int) -> None:
        if place < len(self.connected):
            self.connected[place].permits += permits
            self.pump()

    @rule(place=places, is_writable=st.booleans())
    def write(self, place: int, is_writable: bool) -> None:
        if place < len(self.connected):
            self.connected[place].is_writable = is_writable
            self.pump()

    @rule(which=st.integers(0, END - 1))
    def acknowledge(self, which: int) -> None:
        if which in self.holder:
            self._acknowledged(which)
            self.cursor.acknowledge(which)
            self.dispatcher.acknowledged(which)
            self.pump()

    @rule(which=st.integers(0, END - 1))
    def skip_up_to(self, which: int) -> None:
        if which % 7 == 0:
            for index in range(which + 1):
                self._acknowledged(index)
            self.cursor.skip_to(which + 1)
            self.dispatcher.acknowledged_up_to(which)
            self.pump()

    @rule(which=st.integers(0, END - 1), is_all=st.booleans())
    def give_back(self, which: int, is_all: bool) -> None:
        one = self.holder.get(which)
        if one is None:
            return
        back = [index for index, holder in self.holder.items() if holder is one] if is_all else [which]
        for index in back:
            del self.holder[index]
            self.returns[index] = self.returns.get(index, 0) + 1
        self.dispatcher.redeliver(one, None if is_all else back)
        self.pump()

    def pump(self) -> None:
        while (index := self.dispatcher.next_wanted(END)) is not None:
            assert index == self.due(), "returned entries go first, the oldest of them; then new ones, in order"
            takers = [one for one in self.connected if one.permits > 0 and one.is_writable]
            best = min(one.priority for one in takers)
            before = {one.key: one.permits for one in self.connected}
            delivery = self.dispatcher.deliver(index, entry_of(index), messages_of(index))
            assert delivery is not None, "only a chunk waits for one consumer"
            taker = delivery.consumer
            assert taker in takers
            assert taker.priority == best or self.has_turn_left(taker)
            assert delivery.redelivery_count == self.returns.get(index, 0)
            assert taker.permits == before[taker.key] - messages_of(index)
            self.holder[index] = taker
            self.delivered.add(index)

    def has_turn_left(self, taker: ConsumerState) -> bool:
        """Return whether the consumer has its turn, which it keeps when one of a better priority becomes ready."""
        return self.dispatcher._turn is taker

    def due(self) -> int | None:
        owed = [index for index in range(END) if index not in self.acknowledged and index not in self.holder]
        back = [index for index in owed if index in self.delivered]
        return min(back or owed, default=None)

    def _acknowledged(self, index: int) -> None:
        self.acknowledged.add(index)
        self.holder.pop(index, None)
        self.returns.pop(index, None)

    @invariant()
    def agrees_with_model(self) -> None:
        for one in self.connected:
            held = {index for index, holder in self.holder.items() if holder is one}
            assert set(one.pending) == held
            assert one.pending_messages == sum(map(messages_of, held))

    @invariant()
    def nothing_deliverable_waits(self) -> None:
        can_take = any(one.permits > 0 and one.is_writable for one in self.connected)
        assert not can_take or self.due() is None


class OrderedAgainstModel(RuleBasedStateMachine):
    """Failover: the model names the active consumer by the rule for partitions, and counts from where it starts."""

    choice: FailoverChoice | None = FailoverChoice(PARTITION)

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.dispatcher = ExclusiveDispatcher(self.cursor, self.choice)
        self.numbers = itertools.count()
        self.connected: list[ConsumerState] = []
        self.active: ConsumerState | None = None
        self.next = 0
        self.held: list[int] = []  # by the active one
        self.acknowledged: set[int] = set()

    @rule(priority=st.integers(0, 1), permits=st.integers(0, 9), name=st.sampled_from("abc"))
    def join(self, priority: int, permits: int, name: str) -> None:
        if len(self.connected) < (4 if self.choice else 1):
            one = ConsumerState(next(self.numbers), name, priority, permits)
            self.dispatcher.add(one)
            self.connected.append(one)
            self.elect()

    @rule(place=places)
    def leave(self, place: int) -> None:
        if place < len(self.connected):
            self.dispatcher.remove(self.connected.pop(place))
            self.elect()

    @rule(place=places, permits=st.integers(1, 20))
    def flow(self, place: int, permits: int) -> None:
        if place < len(self.connected):
            self.connected[place].permits += permits
            self.pump()

    @rule(which=st.integers(0, END - 1))
    def acknowledge(self, which: int) -> None:
        if which in self.held:
            self.held.remove(which)
            self.acknowledged.add(which)
            self.cursor.acknowledge(which)
            self.dispatcher.acknowledged(which)
            self.pump()

    @rule(which=st.integers(0, END - 1))
    def acknowledge_up_to(self, which: int) -> None:
        if which in self.held:
            self.acknowledged |= set(range(which + 1))
            self.held = [index for index in self.held if index > which]
            self.cursor.acknowledge_up_to(which)
            self.dispatcher.acknowledged_up_to(which)
            self.pump()

    @rule(place=places)
    def give_back(self, place: int) -> None:
        if place < len(self.connected):
            one = self.connected[place]
            self.dispatcher.redeliver(one, list(one.pending)[-1:])
            if one is self.active:
                self.start_over()
            self.pump()

    @rule(mark=st.integers(0, END))
    def seek(self, mark: int) -> None:
        self.acknowledged = set(range(mark))
        self.cursor.reset(mark)
        self.dispatcher.rewind()
        self.start_over()
        self.pump()

    def elect(self) -> None:
        best = min((one.priority for one in self.connected), default=0)
        candidates = sorted(
            (one for one in self.connected if one.priority == best), key=lambda one: (one.name, one.key)
        )
        active = candidates[PARTITION % len(candidates)] if candidates else None
        if active is not self.active:
            self.active = active
            self.start_over()
        self.pump()

    def start_over(self) -> None:
        self.next, self.held = 0, []

    def pump(self) -> None:
        while (index := self.dispatcher.next_wanted(END)) is not None:
            assert index == self.due(), "every entry in order"
            assert self.active is not None
            assert self.active.permits > 0
            delivery = self.dispatcher.deliver(index, entry_of(index), messages_of(index))
            assert delivery.consumer is self.active
            self.held.append(index)
            self.next = index + 1

    def due(self) -> int | None:
        return next((index for index in range(self.next, END) if index not in self.acknowledged), None)

    @invariant()
    def agrees_with_model(self) -> None:
        assert self.dispatcher.active is self.active
        for one in self.connected:
            assert list(one.pending) == (self.held if one is self.active else [])
        assert self.active is None or self.active.pending_messages == sum(map(messages_of, self.held))

    @invariant()
    def nothing_deliverable_waits(self) -> None:
        assert self.active is None or self.active.permits <= 0 or self.due() is None


class ExclusiveAgainstModel(OrderedAgainstModel):
    """Exclusive: the same with one consumer."""

    choice = None


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
for machine in (SharedAgainstModel, OrderedAgainstModel, ExclusiveAgainstModel):
    machine.TestCase.settings = SETTINGS
TestShared = SharedAgainstModel.TestCase
TestFailover = OrderedAgainstModel.TestCase
TestExclusive = ExclusiveAgainstModel.TestCase
