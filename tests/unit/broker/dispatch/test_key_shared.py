"""Key_Shared: the entries of a key are pending at one consumer at a time, and are delivered in order (I16)."""

from __future__ import annotations

import struct

import crc32c
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_ring import KeyRing
from heliograph.actors.broker.dispatch.key_shared import PARKED_PER_CONSUMER_MAX, KeySharedDispatcher
from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.hashing import sticky_key_hash

KEYS = 7
END = 400


def entry(key: str) -> TopicEntry:
    return TopicEntry(b"x", 1, False, False, None, False, 0, key.encode())


def key_of(index: int) -> str:
    return f"k{index * 31 % KEYS}"


def consumer(number: int, permits: int = 0) -> ConsumerState:
    return ConsumerState(number, f"c{number}", permits=permits)


def deliver(dispatcher: KeySharedDispatcher, end: int) -> list[tuple[int, ConsumerState]]:
    given = []
    while (index := dispatcher.next_wanted(end)) is not None:
        delivery = dispatcher.deliver(index, entry(key_of(index)), 1)
        if delivery is not None:
            given.append((index, delivery.consumer))
    return given


class KeySharedAgainstRules(RuleBasedStateMachine):
    """Consumers join, leave, acknowledge and give back entries; the rules are checked after each delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(0)
        self.dispatcher = KeySharedDispatcher(self.cursor)
        self.connected: list[ConsumerState] = []
        self.numbers = iter(range(10_000))
        self.given_back: set[int] = set()
        self.last_of_key: dict[str, int] = {}

    @rule(permits=st.integers(0, 30))
    def join(self, permits: int) -> None:
        if len(self.connected) < 5:
            one = consumer(next(self.numbers), permits)
            self.dispatcher.add(one)
            self.connected.append(one)
            self.pump()

    @rule(which=st.integers(0, 4))
    def leave(self, which: int) -> None:
        if which < len(self.connected):
            one = self.connected.pop(which)
            self.given_back |= one.pending.keys()
            self.dispatcher.remove(one)
            if not self.connected:
                self.given_back |= set(range(END))
            self.pump()

    @rule(which=st.integers(0, 4), permits=st.integers(1, 40))
    def flow(self, which: int, permits: int) -> None:
        if which < len(self.connected):
            self.connected[which].permits += permits
            self.pump()

    @rule(which=st.integers(0, 4), count=st.integers(1, 20))
    def acknowledge(self, which: int, count: int) -> None:
        if which < len(self.connected):
            for index in sorted(self.connected[which].pending)[:count]:
                self.cursor.acknowledge(index)
                self.dispatcher.acknowledged(index)
            self.pump()

    @rule(which=st.integers(0, 4), count=st.integers(1, 5))
    def give_back(self, which: int, count: int) -> None:
        if which < len(self.connected):
            indexes = sorted(self.connected[which].pending)[-count:]
            self.given_back |= set(indexes)
            self.dispatcher.redeliver(self.connected[which], dict.fromkeys(indexes, 0))
            self.pump()

    @rule(index=st.integers(0, END - 1))
    def skip_from_outside(self, index: int) -> None:
        self.cursor.skip_to(index // 10)
        self.dispatcher.acknowledged_up_to(index // 10 - 1)
        self.pump()

    def pump(self) -> None:
        for index, _ in deliver(self.dispatcher, END):
            key = key_of(index)
            if index not in self.given_back:
                assert index > self.last_of_key.get(key, -1), "first deliveries of a key are in order"  # I16
            self.last_of_key[key] = max(index, self.last_of_key.get(key, -1))

    @invariant()
    def a_key_is_with_one_consumer(self) -> None:
        holders: dict[str, set[int]] = {}
        for one in self.connected:
            for index in one.pending:
                holders.setdefault(key_of(index), set()).add(one.key)
        assert all(len(found) == 1 for found in holders.values())  # I16
        held = [index for one in self.connected for index in one.pending]
        assert len(held) == len(set(held))
        assert not any(self.cursor.is_acknowledged(index) for index in held)

    def teardown(self) -> None:
        """After any steps, consumers that acknowledge get every entry in the end."""
        one = consumer(next(self.numbers))
        self.dispatcher.add(one)
        self.connected.append(one)
        for each in self.connected:
            each.permits = 10 * END
        for _ in range(2 * END):
            self.pump()
            held = [index for each in self.connected for index in each.pending]
            if not held:
                break
            for index in held:
                self.cursor.acknowledge(index)
                self.dispatcher.acknowledged(index)
        assert self.cursor.mark == END
        assert self.dispatcher.replay_count == 0


KeySharedAgainstRules.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestKeySharedAgainstRules = KeySharedAgainstRules.TestCase


def test_a_slow_consumer_holds_back_its_own_keys_only() -> None:
    cursor = Cursor(0)
    dispatcher = KeySharedDispatcher(cursor)
    slow, fast = consumer(1, permits=1), consumer(2, permits=10 * END)
    dispatcher.add(slow)
    dispatcher.add(fast)
    given = deliver(dispatcher, END)
    keys = {who.key: {key_of(index) for index, one in given if one is who} for who in (slow, fast)}
    assert len(slow.pending) == 1
    assert keys[2]
    assert not keys[1] & keys[2]
    assert len(fast.pending) + dispatcher.replay_count + 1 == END
    slow.permits = END
    more = [index for index, _ in deliver(dispatcher, END)]
    assert more == sorted(more)
    assert dispatcher.replay_count == 0


def test_looking_ahead_has_a_bound() -> None:
    dispatcher = KeySharedDispatcher(Cursor(0))
    low, high = consumer(1), consumer(2, permits=1 << 40)
    low.key_ranges, high.key_ranges = ((0, 40_000),), ((40_001, 65_535),)
    dispatcher.add(low)
    dispatcher.add(high)
    key = next(f"k{n}" for n in range(1_000) if sticky_key_hash(b"k%d" % n) <= 40_000)
    while (index := dispatcher.next_wanted(1 << 40)) is not None:
        assert dispatcher.deliver(index, entry(key), 1) is None
    assert dispatcher.replay_count == 2 * PARKED_PER_CONSUMER_MAX  # I15


def test_a_consumer_that_joins_takes_about_its_share_and_nothing_else_moves() -> None:
    ring = KeyRing()
    consumers = [consumer(number) for number in range(4)]
    for one in consumers[:3]:
        ring.add(one)
    before = [ring.owner(key_hash) for key_hash in range(1, 65_536)]
    ring.add(consumers[3])
    after = [ring.owner(key_hash) for key_hash in range(1, 65_536)]
    moved = [new for old, new in zip(before, after, strict=True) if old is not new]
    assert {one.key for one in moved if one} == {3}
    assert 0.15 < len(moved) / 65_535 < 0.35
    ring.remove(consumers[3])
    assert [ring.owner(key_hash) for key_hash in range(1, 65_536)] == before


def test_fixed_ranges() -> None:
    ring = KeyRing()
    low, high, odd = consumer(1), consumer(2), consumer(3)
    low.key_ranges, high.key_ranges = ((0, 99), (200, 299)), ((100, 199),)
    ring.add(low)
    ring.add(high)
    assert [ring.owner(h) for h in (50, 99, 100, 199, 200, 299, 300)] == [low, low, high, high, low, low, None]
    with pytest.raises(ConsumerAssignError):
        ring.add(odd)
    for wrong in ((299, 300), (5, 4), (0, 65_536)):
        odd.key_ranges = (wrong,)
        with pytest.raises(ConsumerAssignError):
            ring.add(odd)


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"partition_key": "user"}, b"user"),
        ({"partition_key": "dXNlcg==", "partition_key_b64_encoded": True}, b"user"),
        ({"partition_key": "user", "ordering_key": b"order"}, b"order"),
        ({}, b"p-7"),
    ],
)
def test_the_key_of_an_entry_is_read_when_it_is_asked_for(metadata: dict[str, object], key: bytes) -> None:
    sent = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **metadata)  # type: ignore[arg-type]
    read = TopicEntry.read(encode_entry(sent, b"x"), check=True)
    assert read.key is None
    assert read.sticky_key == key
    assert read.key == key
    EntryStamp(time_ms=1, latest_ms=1, next_index=None).stamp(read)
    assert (read.sticky_key, TopicEntry.read(read.payload, check=True).sticky_key) == (key, key)
    assert TopicEntry.read(encode_entry(sent, b"x"), check=True, has_key_read=True).key == key


def test_a_key_that_is_not_a_text_is_a_key_all_the_same() -> None:
    sent = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, partition_key="~~~~")
    rest = encode_entry(sent, b"x")[6:].replace(b"~~~~", b"\xff\xfe~~")
    read = TopicEntry.read(struct.pack(">HI", 0x0E01, crc32c.crc32c(rest)) + rest, check=True)
    assert read.sticky_key == b"\xff\xfe~~"
