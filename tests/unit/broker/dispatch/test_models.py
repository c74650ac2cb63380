"""Dispatchers against naive models: which consumer got each entry, which entries are missing, and their order."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, CrashBudget
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.dispatch.multiple_consumers import LONE_SHARE
from heliograph.actors.broker.dispatch.shared import SharedDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry
from tests.examples import examples

END = 60
PARTITION = 1
places = st.integers(0, 3)  # of a consumer among those connected


def messages_of(index: int) -> int:
    return (1, 3, 1, 7, 2)[index % 5]


def all_of(index: int) -> int:
    return (1 << messages_of(index)) - 1


def places_of(bits: int) -> list[int]:
    return [place for place in range(bits.bit_length()) if bits >> place & 1]


@functools.cache
def entry_of(index: int) -> TopicEntry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=index, publish_time=1)
    if messages_of(index) > 1:
        metadata.num_messages_in_batch = messages_of(index)
    return TopicEntry.read(encode_entry(metadata, b""), check=False)


class SharedAgainstModel(RuleBasedStateMachine):
    """The model keeps for each message whether it is acknowledged, where it is pending, and how often it came back."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.dispatcher = SharedDispatcher(self.cursor)
        self.numbers = itertools.count()
        self.connected: list[ConsumerState] = []
        self.held: dict[tuple[int, ConsumerState], int] = {}  # bits, never 0
        self.delivered: set[int] = set()  # since the last time without consumers
        self.returns: defaultdict[tuple[int, int], int] = defaultdict(int)  # by entry and message
        self.crashes: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.acknowledged: dict[int, int] = dict.fromkeys(range(END), 0)  # bits

    @rule(priority=st.integers(0, 1), permits=st.integers(0, 6), takes_parts=st.sampled_from([True, True, True, False]))
    def join(self, priority: int, permits: int, takes_parts: bool) -> None:
        if len(self.connected) < 4:
            number = next(self.numbers)
            one = ConsumerState(number, f"c{number}", priority, permits, takes_parts)
            self.dispatcher.add(one)
            self.connected.append(one)
            self.pump()

    @rule(place=places, is_lost=st.booleans())
    def leave(self, place: int, is_lost: bool) -> None:
        if place >= len(self.connected):
            return
        one = self.connected.pop(place)
        if is_lost:
            self.dispatcher.count_crash(one, CrashBudget())
            for (index, holder), bits in self.held.items():
                for message in places_of(bits) if holder is one else ():
                    self.crashes[index, message] += 1
        self.dispatcher.remove(one)
        self.held = {key: bits for key, bits in self.held.items() if key[1] is not one}
        if not self.connected:  # everything starts over
            self.delivered.clear()
        self.pump()

    @rule(place=places, permits=st.integers(1, 20))
    def flow(self, place: int, permits: int) -> None:
        if place < len(self.connected):
            self.connected[place].flow(permits)
            self.pump()

    @rule(place=places, is_writable=st.booleans())
    def write(self, place: int, is_writable: bool) -> None:
        if place < len(self.connected):
            self.connected[place].set_writable(is_writable)
            self.pump()

    @rule(which=st.integers(0, END - 1), bits=st.integers(1, 127))
    def acknowledge(self, which: int, bits: int) -> None:
        """Acknowledge messages that are pending, wherever they are."""
        bits &= self.pending_of(which)
        if bits:
            self._acknowledged(which, bits)
            if self.cursor.acknowledge_messages(which, all_of(which) & ~bits):
                self.dispatcher.acknowledged(which)
            else:
                left = self.cursor.unacknowledged_bits(which)
                assert left is not None
                self.dispatcher.partly_acknowledged(which, left)
            self.pump()

    @rule(place=places, which=st.integers(0, END - 1))
    def acknowledge_whole(self, place: int, which: int) -> None:
        """Acknowledge an entry as a client does that knows of no other part of it."""
        if place < len(self.connected):
            one = self.connected[place]
            if bits := self.held.get((which, one), 0):
                left = self.dispatcher.left_by(which, one)
                assert not left & bits
                assert not left or left | bits == all_of(which) | left
                self.acknowledge(which, bits)

    @rule(which=st.integers(0, END - 1))
    def skip_up_to(self, which: int) -> None:
        if which % 7 == 0:
            for index in range(which + 1):
                self._acknowledged(index, all_of(index))
            self.cursor.skip_to(which + 1)
            self.dispatcher.acknowledged_up_to(which)
            self.pump()

    @rule(place=places, which=st.integers(0, END - 1), bits=st.integers(0, 127), is_all=st.booleans())
    def give_back(self, place: int, which: int, bits: int, is_all: bool) -> None:
        """Give messages of an entry back, all of it that is pending, or everything."""
        if place >= len(self.connected):
            return
        one = self.connected[place]
        back = {index: 0 for index, holder in self.held if holder is one} if is_all else {which: bits}
        for index, some in back.items():
            held = self.held.pop((index, one), 0)
            if left := held & ~some if some else 0:
                self.held[index, one] = left
            for message in places_of(held & ~left):
                self.returns[index, message] += 1
        self.dispatcher.redeliver(one, None if is_all else back)
        self.pump()

    def pump(self) -> None:
        while (index := self.dispatcher.next_wanted(END)) is not None:
            assert index == self.due(), "returned entries go first, the oldest of them; then new ones, in order"
            takers = [one for one in self.connected if one.permits > 0 and one.is_writable]
            best = min(one.priority for one in takers)
            before = {one.key: one.permits for one in self.connected}
            acknowledged = self.acknowledged[index]
            bits, free = all_of(index) & ~acknowledged if acknowledged else None, self.free_of(index)
            messages = messages_of(index) - acknowledged.bit_count()
            delivery = self.dispatcher.deliver(index, entry_of(index), messages, bits)
            assert delivery is not None, "only a chunk waits for one consumer"
            taker = delivery.consumer
            assert taker in takers
            assert taker.priority == best or self.has_turn_left(taker)
            part = all_of(index) if delivery.bits is None else delivery.bits
            assert part & free == part
            assert delivery.messages == part.bit_count()
            assert delivery.left == (free & ~part).bit_count()
            assert taker.permits == before[taker.key] - delivery.messages
            room = before[taker.key]
            counts = {place: (self.returns[index, place], self.crashes[index, place]) for place in places_of(free)}
            least = min(counts.values())
            alike = sum(count == least for count in counts.values())
            if not all(one.takes_parts for one in self.connected):
                assert not delivery.left, "all get everything while one takes no parts"
                assert delivery.redelivery_count == least[0]
            else:
                found = delivery.redelivery_count, delivery.crashes
                assert found == least, "those that came back least often come first"
                assert all(counts[message] == least for message in places_of(part)), "no innocent counts"
                if len(self.connected) > 1 or room < alike * LONE_SHARE:
                    assert delivery.messages == min(room, alike), "no permit is exceeded, and none is unused"
                else:
                    assert delivery.messages == alike, "a lone consumer gets all"
            self.held[index, taker] = self.held.get((index, taker), 0) | part
            self.delivered.add(index)

    def has_turn_left(self, taker: ConsumerState) -> bool:
        """Return whether the consumer has its turn, which it keeps when one of a better priority becomes ready."""
        return self.dispatcher._turn is taker

    def pending_of(self, index: int) -> int:
        found = 0
        for (at, _), bits in self.held.items():
            found |= bits if at == index else 0
        return found

    def free_of(self, index: int) -> int:
        return all_of(index) & ~self.acknowledged[index] & ~self.pending_of(index)

    def due(self) -> int | None:
        owed = [index for index in range(END) if self.free_of(index)]
        back = [index for index in owed if index in self.delivered]
        return min(back or owed, default=None)

    def _acknowledged(self, index: int, bits: int) -> None:
        self.acknowledged[index] |= bits
        for key, held in list(self.held.items()):
            if key[0] == index:
                if held & ~bits:
                    self.held[key] = held & ~bits
                else:
                    del self.held[key]

    @invariant()
    def agrees_with_model(self) -> None:
        for one in self.connected:
            held = {index: bits.bit_count() for (index, holder), bits in self.held.items() if holder is one}
            assert one.pending == held
            assert one.pending_messages == sum(held.values())

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
            self.connected[place].flow(permits)
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
            self.cursor.skip_to(which + 1)
            self.dispatcher.acknowledged_up_to(which)
            self.pump()

    @rule(place=places)
    def give_back(self, place: int) -> None:
        if place < len(self.connected):
            one = self.connected[place]
            self.dispatcher.redeliver(one, dict.fromkeys(list(one.pending)[-1:], 0))
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


SETTINGS = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
for machine in (SharedAgainstModel, OrderedAgainstModel, ExclusiveAgainstModel):
    machine.TestCase.settings = SETTINGS
TestShared = SharedAgainstModel.TestCase
TestFailover = OrderedAgainstModel.TestCase
TestExclusive = ExclusiveAgainstModel.TestCase
