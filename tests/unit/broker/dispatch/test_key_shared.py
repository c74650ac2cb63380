"""Key_Shared: the entries of a key are pending at one consumer at a time, and are delivered in order (I16)."""

from __future__ import annotations

import functools
import random
import struct
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import crc32c
import pytest
from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_queues import KeyQueues
from heliograph.actors.broker.dispatch.key_ring import KeyRing
from heliograph.actors.broker.dispatch.key_shared import PARKED_MAX, PARKED_PER_CONSUMER_MAX, KeySharedDispatcher
from heliograph.actors.broker.dispatch.message_bits import places_of
from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.hashing import sticky_key_hash
from tests.unit.limits.measuring import Costs

pytestmark = pytest.mark.slow

KEYS = 7
END = 60
MANY = 400
SEEDS, STEPS = 120, 60


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


@functools.cache
def batch(index: int) -> TopicEntry:
    """Return an entry of one to seven messages with keys of their own, or of one key, or with keys that are unknown."""
    draw = random.Random(index)
    messages = draw.choice((1, 1, 2, 3, 7))
    keys = [f"k{draw.randrange(KEYS)}" for _ in range(messages)]
    if draw.random() < 0.2:
        keys = keys[:1] * messages
    found = TopicEntry(b"x", messages, messages > 1, False, None, False, 0, keys[0].encode())
    if messages > 1:
        is_known = index % 11 != 5
        found.key_hashes = [sticky_key_hash(key.encode()) for key in keys] if is_known else ()
    return found


def hash_of(index: int, place: int) -> int:
    """Return what a message is dispatched by."""
    return batch(index).key_hashes[place] if batch(index).key_hashes else sticky_key_hash(batch(index).sticky_key)  # type: ignore[index]


def all_of(index: int) -> int:
    return (1 << batch(index).messages) - 1


class KeySharedAgainstRules:
    """Consumers join, leave, freeze, acknowledge and give back messages; the rules are checked after each delivery.

    Args:
        is_divided: all consumers take parts. Otherwise the keys of a batch are not kept together, but nothing is stuck.
    """

    def __init__(self, seed: int, *, is_divided: bool) -> None:
        self.random = random.Random(seed)
        self.is_divided = is_divided
        self.cursor = Cursor(0)
        self.dispatcher = KeySharedDispatcher(self.cursor, splits_keys=self.random.random() < 0.5)
        self.connected: list[ConsumerState] = []
        self.numbers = iter(range(10_000))
        self.held: dict[tuple[int, int], ConsumerState] = {}  # by entry and message
        self.returned: set[tuple[int, int]] = set()  # messages that came back and are not delivered again
        self.returns: Counter[tuple[int, int]] = Counter()
        self.delivered: set[tuple[int, int]] = set()
        self.acknowledged: Counter[int] = Counter()  # bits
        self.last_of_hash: dict[int, tuple[int, int]] = {}

    def join(self) -> None:
        if len(self.connected) < 5:
            one = consumer(next(self.numbers), self.random.randrange(31))
            one.takes_parts = self.is_divided or self.random.random() < 0.5
            self.dispatcher.add(one)
            self.connected.append(one)
            self.pump()

    def leave(self) -> None:
        if (one := self._any()) is not None:
            self.connected.remove(one)
            self._came_back(message for message, holder in list(self.held.items()) if holder is one)
            self.dispatcher.remove(one)
            if not self.connected:  # everything starts over
                self.returned |= {message for message in self.delivered if not self._is_acknowledged(message)}
            self.pump()

    def flow(self) -> None:
        if (one := self._any()) is not None:
            one.flow(self.random.randrange(1, 41))
            self.pump()

    def freeze(self) -> None:
        if (one := self._any()) is not None:
            one.set_writable(self.random.random() < 0.5)
            self.pump()

    def acknowledge(self) -> None:
        """Acknowledge messages that a consumer holds, and others of the same entries, which it may have had before."""
        if (one := self._any()) is not None:
            for index in sorted(one.pending)[: self.random.randrange(1, 20)]:
                self._acknowledge(index, self.random.randrange(1, 128) & all_of(index), self.random.choice((one, None)))
            self.pump()

    def acknowledge_whole(self) -> None:
        """Acknowledge entries as clients do that know of no parts."""
        if (one := self._any()) is not None:
            for index in sorted(one.pending)[: self.random.randrange(1, 20)]:
                self._acknowledge(index, all_of(index) & ~self.dispatcher.left_by(index, one), one)
            self.pump()

    def give_back(self) -> None:
        if (one := self._any()) is not None:
            count, bits = self.random.randrange(1, 5), self.random.randrange(128)
            named = {index: bits & all_of(index) for index in sorted(one.pending)[-count:]}
            for index, some in named.items():
                back = [
                    message
                    for message, holder in list(self.held.items())
                    if message[0] == index and holder is one and (not some or some >> message[1] & 1)
                ]
                self.returns.update(back)
                self._came_back(back)
            self.dispatcher.redeliver(one, named)
            self.pump()

    def skip_from_outside(self) -> None:
        mark = self.random.randrange(END) // 10
        for each in range(mark):
            self._note_acknowledged(each, all_of(each))
        self.cursor.skip_to(mark)
        self.dispatcher.acknowledged_up_to(mark - 1)
        self.pump()

    def pump(self) -> None:
        while (index := self.dispatcher.next_wanted(END)) is not None:
            bits = self.cursor.unacknowledged_bits(index)
            open_bits = all_of(index) if bits is None else bits
            before = {one: one.permits for one in self.connected}
            delivery = self.dispatcher.deliver(index, batch(index), open_bits.bit_count(), bits)
            if delivery is None:
                continue
            taker, part = delivery.consumer, all_of(index) if delivery.bits is None else delivery.bits
            assert part
            assert not part & ~open_bits
            assert delivery.messages == part.bit_count() == before[taker] - taker.permits
            if batch(index).key_hashes and len(self.connected) > 1 and self.is_divided:
                assert delivery.messages <= before[taker], "no permit is exceeded"
            for place in places_of(part):
                self._delivered(index, place, delivery.redelivery_count, taker)

    def _delivered(self, index: int, place: int, count: int, taker: ConsumerState) -> None:
        message, key_hash = (index, place), hash_of(index, place)
        assert message not in self.held, "a message is pending at one consumer"
        self.held[message] = taker
        self.returned.discard(message)
        if self.is_divided and batch(index).key_hashes != ():
            assert self.returns[message] == count, "attempts are of the message"  # I22
        if self.is_divided and message not in self.delivered:
            assert message > self.last_of_hash.get(key_hash, (-1, 0)), "first deliveries of a key are in order"  # I16
            earlier = [one for one in self.returned if one < message and hash_of(*one) == key_hash]
            assert not earlier, "what came back of a key is delivered before what is new"  # I16
            self.last_of_hash[key_hash] = message
        self.delivered.add(message)

    def _came_back(self, messages: Iterable[tuple[int, int]]) -> None:
        for message in messages:
            del self.held[message]
            self.returned.add(message)

    def _acknowledge(self, index: int, bits: int, by: ConsumerState | None) -> None:
        self._note_acknowledged(index, bits)
        if self.cursor.acknowledge_messages(index, all_of(index) & ~bits):
            self.dispatcher.acknowledged(index)
        elif (left := self.cursor.unacknowledged_bits(index)) is not None:
            self.dispatcher.partly_acknowledged(index, left, by)

    def _note_acknowledged(self, index: int, bits: int) -> None:
        self.acknowledged[index] |= bits
        for place in places_of(bits):
            self.held.pop((index, place), None)
            self.returned.discard((index, place))

    def _is_acknowledged(self, message: tuple[int, int]) -> bool:
        return bool(self.acknowledged[message[0]] >> message[1] & 1)

    def a_key_is_with_one_consumer(self) -> None:
        holders: dict[int, set[int]] = {}
        for (index, place), one in self.held.items():
            noted = self.dispatcher._hashes[index]  # one for all messages of an entry that is delivered as a whole
            holders.setdefault(noted if isinstance(noted, int) else noted[place], set()).add(one.key)
            assert not self._is_acknowledged((index, place))
        assert all(len(found) == 1 for found in holders.values())  # I16

    def agrees_on_what_is_pending(self) -> None:
        for one in self.connected:
            assert one.pending == Counter(index for (index, _), holder in self.held.items() if holder is one)
            assert one.pending_messages == sum(one.pending.values())

    def nothing_deliverable_waits(self) -> None:
        able = [one for one in self.connected if one.can_take]
        if not able:
            return
        for index in range(END):
            for place in range(batch(index).messages):
                if not self._is_acknowledged((index, place)) and (index, place) not in self.held:
                    self._waits_for_reason(hash_of(index, place))

    def _waits_for_reason(self, key_hash: int) -> None:
        owner = self.dispatcher._ranges.owner(key_hash)
        assert owner is not None
        holders = {one for message, one in self.held.items() if hash_of(*message) == key_hash}
        assert not self.is_divided or not owner.can_take or holders - {owner}

    def check(self) -> None:
        self.a_key_is_with_one_consumer()
        self.agrees_on_what_is_pending()
        queues = self.dispatcher._queues
        found = {index: sum(queue.bits[index] for queue in places) for index, places in queues._places.items()}
        assert found == queues._waiting
        self.nothing_deliverable_waits()

    def _any(self) -> ConsumerState | None:
        return self.random.choice(self.connected) if self.connected else None

    def finish(self) -> None:
        """After any steps, consumers that acknowledge get every message in the end."""
        one = consumer(next(self.numbers))
        one.takes_parts = True
        self.dispatcher.add(one)
        self.connected.append(one)
        for each in self.connected:
            each.flow(10_000)
            each.set_writable(True)
        for _ in range(2 * END):
            self.pump()
            held = list(self.held)
            if not held:
                break
            for index, place in held:
                self._acknowledge(index, 1 << place, None)
        assert self.cursor.mark == END
        assert self.dispatcher.replay_count == 0
        assert not self.dispatcher._hashes
        assert not any(self.dispatcher._held.values())
        assert not self.dispatcher._earlier
        assert not self.dispatcher._owed
        assert not self.dispatcher._queues.draining


@pytest.mark.parametrize("seed", [*range(0, SEEDS, 10), 920])
def test_every_step_keeps_the_rules(seed: int) -> None:
    for each in range(seed, seed + 10):
        rules = KeySharedAgainstRules(each, is_divided=each % 3 > 0)
        steps = [rules.join, rules.leave, rules.freeze, rules.acknowledge_whole, rules.skip_from_outside]
        often = [rules.join, rules.flow, rules.flow, rules.acknowledge, rules.acknowledge_whole, rules.give_back]
        for _ in range(STEPS):
            rules.random.choice(often if rules.random.random() < 0.8 else steps)()
            rules.check()
        rules.finish()


def test_a_slow_consumer_holds_back_its_own_keys_only() -> None:
    cursor = Cursor(0)
    dispatcher = KeySharedDispatcher(cursor)
    slow, fast = consumer(1, permits=1), consumer(2, permits=10 * MANY)
    dispatcher.add(slow)
    dispatcher.add(fast)
    given = deliver(dispatcher, MANY)
    keys = {who.key: {key_of(index) for index, one in given if one is who} for who in (slow, fast)}
    assert len(slow.pending) == 1
    assert keys[2]
    assert not keys[1] & keys[2]
    assert len(fast.pending) + dispatcher.replay_count + 1 == MANY
    slow.flow(MANY)
    more = [index for index, _ in deliver(dispatcher, MANY)]
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


def test_a_join_while_as_much_waits_as_may_is_short() -> None:
    """All of what waits may have another consumer then (I24)."""
    dispatcher, draw = KeySharedDispatcher(Cursor(0)), random.Random(1)
    joined = [consumer(n, permits=(1 << 40) * (n == 0)) for n in range(6)]
    for one in joined:
        one.takes_parts = True
        dispatcher.add(one)
    while (index := dispatcher.next_wanted(1 << 40)) is not None:
        whole = TopicEntry(b"x", 100, True, False, None, False, 0, b"")
        whole.key_hashes = array("H", [draw.randrange(1 << 16) for _ in range(100)])
        dispatcher.deliver(index, whole, 100)
    assert PARKED_MAX <= dispatcher.replay_count < PARKED_MAX + 100
    costs = Costs()
    for number, _ in enumerate(costs.attempts()):
        late = consumer(10 + number)
        late.takes_parts = True
        with costs.measured():
            dispatcher.add(late)
    costs.check("a join")


class QueuesNotToWalk(set[Any]):
    """Queues with messages of an entry, which only an acknowledgement of one of these walks over."""

    @override
    def __iter__(self) -> Any:
        raise AssertionError("an acknowledgement of what waits nowhere looks at no queue")  # I24


def test_an_acknowledgement_looks_at_no_queue_if_its_message_waits_in_none() -> None:
    queues, bits = KeyQueues(), 1 << 99
    for place in range(99):
        queues.draining[place] = set()
        queues.hold(place, 0, 1 << place)
    queues._places[0] = QueuesNotToWalk(queues._places[0])
    queues.discard(0, bits)
    with pytest.raises(AssertionError, match="at no queue"):
        queues.discard(0, bits | 1)


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
