"""Exclusive, Failover and Shared dispatchers: which consumer gets the next entry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, Dispatcher
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.dispatch.key_shared import KeySharedDispatcher
from heliograph.actors.broker.dispatch.pending_acks import PENDING_MESSAGES_MAX
from heliograph.actors.broker.dispatch.shared import TURN_ENTRIES_MAX, SharedDispatcher
from heliograph.actors.broker.records.message_keys import read_key_hashes
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import ConsumerBusyError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, heads_of
from tests.examples import examples


def entry(messages: int = 1, chunk: str | None = None, is_last: bool = False) -> TopicEntry:
    return TopicEntry(b"x", messages, messages > 1, False, chunk, is_last, 0, b"")


def deliver(dispatcher: Dispatcher, end: int, count: int = 10_000) -> list[tuple[int, str, int]]:
    """Deliver everything that can be delivered now; return (index, consumer, redelivery count) of each entry."""
    given: list[tuple[int, str, int]] = []
    while len(given) < count and (index := dispatcher.next_wanted(end)) is not None:
        delivery = dispatcher.deliver(index, entry(), 1)
        assert delivery is not None
        given.append((index, delivery.consumer.name, delivery.redelivery_count))
    return given


def consumer(name: str, permits: int = 0, priority: int = 0) -> ConsumerState:
    return ConsumerState(hash(name), name, priority, permits)


def test_exclusive_takes_one_consumer_and_respects_permits() -> None:
    cursor = Cursor(2)
    dispatcher = ExclusiveDispatcher(cursor)
    a = consumer("a", permits=3)
    dispatcher.add(a)
    with pytest.raises(ConsumerBusyError):
        dispatcher.add(consumer("b"))
    assert [index for index, *_ in deliver(dispatcher, 100)] == [2, 3, 4]
    assert dispatcher.next_wanted(100) is None
    a.flow(1)
    a.set_writable(False)
    assert dispatcher.next_wanted(100) is None  # I15
    a.set_writable(True)
    assert [index for index, *_ in deliver(dispatcher, 100)] == [5]


def test_exclusive_redelivers_in_order_what_is_not_acknowledged() -> None:
    cursor = Cursor(0)
    dispatcher = ExclusiveDispatcher(cursor)
    a = consumer("a", permits=10)
    dispatcher.add(a)
    deliver(dispatcher, 5)
    for index in (0, 2):
        cursor.acknowledge(index)
        dispatcher.acknowledged(index)
    assert a.pending_messages == 3
    dispatcher.redeliver(a, dict.fromkeys([3], 0))
    assert [index for index, *_ in deliver(dispatcher, 5)] == [1, 3, 4]
    assert a.pending_messages == 3


def test_failover_chooses_by_priority_and_name_and_changes_when_the_active_consumer_leaves() -> None:
    dispatcher = ExclusiveDispatcher(Cursor(0), FailoverChoice(1))
    low, b, a = consumer("0", 9, priority=1), consumer("b", 9), consumer("a", 9)
    for one in (low, b, a):
        dispatcher.add(one)
    assert dispatcher.active is b  # index 1 of (a, b)
    assert deliver(dispatcher, 2) == [(0, "b", 0), (1, "b", 0)]
    dispatcher.remove(b)
    assert dispatcher.active is a
    assert deliver(dispatcher, 2) == [(0, "a", 0), (1, "a", 0)]
    dispatcher.remove(a)
    assert dispatcher.active is low
    dispatcher.remove(low)
    assert dispatcher.active is None


def test_shared_takes_turns() -> None:
    dispatcher = SharedDispatcher(Cursor(0))
    for name in "abc":
        dispatcher.add(consumer(name, permits=1_000))
    given = deliver(dispatcher, 6 * TURN_ENTRIES_MAX)
    assert [name for _, name, _ in given] == [name for name in "abcabc" for _ in range(TURN_ENTRIES_MAX)]
    assert [index for index, *_ in given] == list(range(6 * TURN_ENTRIES_MAX))


def test_shared_serves_priorities_first_and_spills_over() -> None:
    dispatcher = SharedDispatcher(Cursor(0))
    dispatcher.add(consumer("second", permits=5, priority=1))
    dispatcher.add(consumer("first", permits=3))
    assert [name for _, name, _ in deliver(dispatcher, 100)] == ["first"] * 3 + ["second"] * 5


def test_shared_counts_redeliveries_and_gives_them_first() -> None:
    cursor = Cursor(0)
    dispatcher = SharedDispatcher(cursor)
    a, b = consumer("a", permits=3), consumer("b")
    dispatcher.add(a)
    dispatcher.add(b)
    assert [index for index, *_ in deliver(dispatcher, 10)] == [0, 1, 2]
    dispatcher.redeliver(a, dict.fromkeys([1, 7], 0))  # 7 is not held by a: ignored
    assert dispatcher.replay_count == 1
    b.flow(2 - b.permits)
    assert deliver(dispatcher, 10) == [(1, "b", 1), (3, "b", 0)]
    dispatcher.remove(a)  # leaving does not count as a redelivery
    b.flow(5 - b.permits)
    assert deliver(dispatcher, 5) == [(0, "b", 0), (2, "b", 0), (4, "b", 0)]
    cursor.acknowledge(1)
    dispatcher.acknowledged(1)
    dispatcher.redeliver(b, None)
    assert sorted(deliver(dispatcher, 5)) == [(0, "b", 1), (2, "b", 1)]
    assert dispatcher.replay_count == 2


def test_shared_starts_over_when_the_last_consumer_leaves() -> None:
    dispatcher = SharedDispatcher(Cursor(0))
    a = consumer("a", permits=5)
    dispatcher.add(a)
    deliver(dispatcher, 5)
    dispatcher.redeliver(a, dict.fromkeys([0], 0))
    dispatcher.remove(a)
    assert (dispatcher.replay_count, dispatcher.read_index) == (0, 0)
    dispatcher.add(consumer("b", permits=2))
    assert deliver(dispatcher, 5) == [(0, "b", 1), (1, "b", 0)]  # a refusal counts though its consumer left


def test_shared_stops_at_the_limit_of_unacknowledged_messages() -> None:
    cursor = Cursor(0)
    dispatcher = SharedDispatcher(cursor)
    many = [consumer(f"c{n}", permits=10 * PENDING_MESSAGES_MAX) for n in range(10)]
    for one in many:
        dispatcher.add(one)
    index = 0
    while (wanted := dispatcher.next_wanted(10**9)) is not None:
        dispatcher.deliver(wanted, entry(1_000), 1_000)
        index = wanted
    assert dispatcher.is_blocked  # I15
    assert sum(one.pending_messages for one in many) == PENDING_MESSAGES_MAX
    for acknowledged in range(index // 2):
        cursor.acknowledge(acknowledged)
        dispatcher.acknowledged(acknowledged)
    assert dispatcher.is_blocked
    for acknowledged in range(index // 2, index // 2 + 2):
        cursor.acknowledge(acknowledged)
        dispatcher.acknowledged(acknowledged)
    assert not dispatcher.is_blocked


def test_chunks_of_a_message_stay_together() -> None:
    dispatcher = SharedDispatcher(Cursor(0))
    a, b = consumer("a", permits=1), consumer("b", permits=5)
    dispatcher.add(a)
    dispatcher.add(b)
    owners = []
    for index in range(3):
        assert dispatcher.next_wanted(10) == index
        delivery = dispatcher.deliver(index, entry(chunk="u", is_last=index == 2), 1)
        assert delivery is not None
        owners.append(delivery.consumer.name)
    assert owners == ["a", "a", "a"]
    assert a.permits == -2


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["flow", "ack", "nack", "leave"])), max_size=60))
def test_shared_loses_nothing_and_gives_nothing_to_two(steps: list[tuple[str, str]]) -> None:
    cursor = Cursor(0)
    dispatcher = SharedDispatcher(cursor)
    connected: dict[str, ConsumerState] = {}
    for name, what in steps:
        one = connected.get(name)
        if one is None:
            one = connected[name] = consumer(name)
            dispatcher.add(one)
        if what == "flow":
            one.flow(3)
        elif what == "leave":
            dispatcher.remove(one)
            del connected[name]
        elif one.pending:
            index = min(one.pending)
            if what == "ack":
                cursor.acknowledge(index)
                dispatcher.acknowledged(index)
            else:
                dispatcher.redeliver(one, dict.fromkeys([index], 0))
        deliver(dispatcher, 50)
        held = [index for one in connected.values() for index in one.pending]
        assert len(held) == len(set(held))
        assert not any(cursor.is_acknowledged(index) for index in held)
    last = consumer("last", permits=1_000)
    dispatcher.add(last)
    for one in list(connected.values()):
        dispatcher.remove(one)
    deliver(dispatcher, 50)
    assert sorted(last.pending) == [index for index in range(50) if not cursor.is_acknowledged(index)]


def test_chunks_wait_for_the_consumer_of_the_first_chunk() -> None:
    """A client that reads nothing gets no more chunks, which would pile up (I15); other consumers get other entries."""
    dispatcher = SharedDispatcher(Cursor(0))
    slow, fast = ConsumerState(1, "slow", permits=10), ConsumerState(2, "fast", priority=1, permits=10)
    dispatcher.add(slow)
    dispatcher.add(fast)
    chunks = {0: entry(chunk="u"), 1: entry(chunk="u"), 3: entry(chunk="u"), 4: entry(chunk="u", is_last=True)}

    def pump() -> list[tuple[int, str]]:
        found = []
        while (index := dispatcher.next_wanted(6)) is not None:
            delivery = dispatcher.deliver(index, chunks.get(index, entry()), 1)
            if delivery is not None:
                found.append((index, delivery.consumer.name))
        return found

    assert dispatcher.next_wanted(6) == 0
    assert dispatcher.deliver(0, chunks[0], 1).consumer is slow  # type: ignore[union-attr]
    slow.set_writable(False)
    assert pump() == [(2, "fast"), (5, "fast")]
    assert dispatcher.replay_count == 3
    slow.set_writable(True)
    assert pump() == [(1, "slow"), (3, "slow"), (4, "slow")]
    assert dispatcher.replay_count == 0
    dispatcher.redeliver(slow, dict.fromkeys([1, 3], 0))
    fast.flow(0 - fast.permits)
    again = [(index, "slow") for index in (0, 1, 3, 4)]
    assert pump() == again, "without one of its chunks a message is not complete, and any consumer may get all of them"


def test_chunks_that_wait_go_to_another_consumer_when_theirs_leaves() -> None:
    cursor = Cursor(0)
    dispatcher = SharedDispatcher(cursor)
    slow, fast = ConsumerState(1, "slow", permits=1), ConsumerState(2, "fast", priority=1, permits=10)
    dispatcher.add(slow)
    dispatcher.add(fast)
    for index in range(4):
        assert dispatcher.next_wanted(4) == index
        delivery = dispatcher.deliver(index, entry(chunk="u", is_last=index == 3), 1)
        assert (delivery is None) == (index > 0)
        slow.set_writable(False)
    assert dispatcher.next_wanted(4) is None
    cursor.acknowledge(2)  # an administrator skips it
    dispatcher.acknowledged(2)
    assert dispatcher.replay_count == 2
    dispatcher.remove(slow)
    for index in (0, 1, 3):
        assert dispatcher.next_wanted(4) == index
        assert dispatcher.deliver(index, entry(chunk="u", is_last=index == 3), 1).consumer is fast  # type: ignore[union-attr]
    assert dispatcher.next_wanted(4) is None
    assert not dispatcher.replay_count


@pytest.mark.parametrize("make", [SharedDispatcher, KeySharedDispatcher])
def test_an_entry_that_is_given_back_twice_in_one_command_counts_once(
    make: type[SharedDispatcher | KeySharedDispatcher],
) -> None:
    dispatcher = make(Cursor(0))
    a = consumer("a", permits=1)
    dispatcher.add(a)
    assert deliver(dispatcher, 1) == [(0, "a", 0)]
    dispatcher.redeliver(a, dict.fromkeys([0, 0], 0))
    assert dispatcher.replay_count == 1
    a.flow(1 - a.permits)
    assert deliver(dispatcher, 1) == [(0, "a", 1)]
    assert dispatcher.replay_count == 0


@pytest.mark.parametrize("keys", [["a"] * 4, ["a", "b", "c", "d"]])
@pytest.mark.parametrize("make", [SharedDispatcher, KeySharedDispatcher])
def test_what_was_held_back_of_a_divided_entry_comes_once_it_is_due(
    make: type[SharedDispatcher] | type[KeySharedDispatcher], keys: list[str]
) -> None:
    """A clock that is set back, or a policy, may hold back an entry of which a part is pending."""
    cursor = Cursor(0)
    dispatcher = make(cursor)
    both = consumer("a", permits=1), consumer("b", permits=1)
    for one in both:
        one.takes_parts = True
        dispatcher.add(one)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    batch = encode_batch(metadata, heads_of([b"x"] * 4, keys), [b"x"] * 4, pb.NONE)
    read = TopicEntry.read(batch, check=True)
    read.key_hashes = read_key_hashes(read)
    given = 0

    def pump() -> None:
        nonlocal given
        while dispatcher.next_wanted(1) == 0:
            found = dispatcher.deliver(0, read, 4, None)
            if found is not None:
                assert found.bits is not None
                assert not given & found.bits
                given |= found.bits

    pump()
    assert 0 < given < 15
    both[0].flow(4)
    both[1].flow(4)
    dispatcher.skip(0)
    assert dispatcher.next_wanted(1) is None
    dispatcher.make_due([0])
    pump()
    assert given == 15
    dispatcher.make_due([0])
    assert dispatcher.next_wanted(1) is None
