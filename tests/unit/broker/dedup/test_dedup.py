"""The core of deduplication compared with a naive model over failovers (hypothesis), and its bounds."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.dedup import record as dedup_record
from heliograph.actors.broker.dedup.dedup import (
    CHUNKS_MS_MAX,
    NOTHING,
    PREFIXES_MAX,
    Chunk,
    Deduplication,
    DedupVerdict,
    Remembered,
    Stored,
    StoredChunks,
)
from heliograph.actors.broker.records.position import Position
from tests.examples import examples

NAMES = ("a", "b", "c")


def chunk_of(sequence: int, number: int, chunks: int) -> Chunk:
    return Chunk(b"message %d" % sequence, number, number == chunks - 1)


class Sent(NamedTuple):
    """An entry as a producer sends it: one message, a batch or a chunk."""

    name: str
    first: int
    last: int
    chunk: Chunk | None = None

    @property
    def is_whole(self) -> bool:
        return self.chunk is None or self.chunk.is_last


class Failovers(RuleBasedStateMachine):
    """Producers that send, lose answers and send again to brokers that crash. ``log`` holds what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Deduplication()
        self.log: list[Sent] = []
        self.flight: deque[Sent] = deque()
        self.snapshot: tuple[int, list[Stored]] = (0, [])
        self.next = dict.fromkeys(NAMES, 0)
        self.unacked: dict[str, list[Sent]] = {name: [] for name in NAMES}
        self.acked: set[tuple[str, int]] = set()
        for name in NAMES:
            self.core.connected(name)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def send(self, name: str, count: int) -> None:
        self.send_new(Sent(name, self.next[name], self.next[name] + count - 1))
        self.next[name] += count

    @rule(name=st.sampled_from(NAMES), chunks=st.integers(2, 5))
    def send_chunks(self, name: str, chunks: int) -> None:
        sequence = self.next[name]
        self.next[name] += 1
        for number in range(chunks):
            self.send_new(Sent(name, sequence, sequence, chunk_of(sequence, number, chunks)))

    def send_new(self, sent: Sent) -> None:
        self.unacked[sent.name].append(sent)
        assert self.push(sent) is DedupVerdict.ACCEPT

    @rule(name=st.sampled_from(NAMES))
    def send_again(self, name: str) -> None:
        """Send everything unacknowledged again, in order, as after a reconnect."""
        for sent in list(self.unacked[name]):
            if self.push(sent) is DedupVerdict.DUPLICATE:
                self.acknowledge(sent)

    @rule(name=st.sampled_from(NAMES), back=st.integers(1, 5))
    def send_old(self, name: str, back: int) -> None:
        """Send old entries from a new process of the producer that starts over too early."""
        sequence = self.next[name] - back
        if sequence >= 0:
            verdict = self.push(Sent(name, sequence, sequence))
            assert verdict is not DedupVerdict.ACCEPT or sequence > self.highest(name)

    @rule(count=st.integers(1, 5), is_answered=st.booleans())
    def confirm(self, count: int, is_answered: bool) -> None:
        for _ in range(min(count, len(self.flight))):
            sent = self.flight.popleft()
            self.log.append(sent)
            self.core.confirmed(sent.name, sent.last, 0, sent.chunk)
            if is_answered:
                self.acknowledge(sent)

    @rule()
    def take_snapshot(self) -> None:
        records = dedup_record.encode(self.core.snapshot(), Position(1, 1), -1)
        self.snapshot = (len(self.log), [one for data in records for one in dedup_record.decode(data).producers])

    @rule(kept=st.integers(0, 5))
    def fail_over(self, kept: int) -> None:
        """Recover some of the entries in flight; the next owner starts from the last snapshot."""
        self.log += [self.flight[at] for at in range(min(kept, len(self.flight)))]
        self.flight.clear()
        position, remembered = self.snapshot
        self.core = Deduplication()
        self.core.restore(remembered)
        for sent in self.log[position:]:
            self.core.replay(sent.name, sent.last, 0, sent.chunk)
        for name in NAMES:
            self.core.connected(name)
            assert self.core.last(name) == self.highest(name)
            self.send_again(name)

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        """Neither a message nor a chunk."""
        stored = [(sent.name, sent.last) for sent in (*self.log, *self.flight) if sent.is_whole]
        assert len(stored) == len(set(stored))
        chunks = [(sent.name, sent.chunk) for sent in (*self.log, *self.flight) if sent.chunk is not None]
        assert len(chunks) == len(set(chunks))

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        stored = {
            (sent.name, sequence) for sent in self.log if sent.is_whole for sequence in range(sent.first, sent.last + 1)
        }
        assert self.acked <= stored

    def push(self, sent: Sent) -> DedupVerdict:
        verdict = self.core.judge(sent.name, sent.last, sent.chunk)
        if verdict is DedupVerdict.ACCEPT:
            self.flight.append(sent)
            assert not self.core.is_settled(sent.name)
        return verdict

    def acknowledge(self, sent: Sent) -> None:
        if sent in self.unacked[sent.name]:
            self.unacked[sent.name].remove(sent)
        if sent.is_whole:
            self.acked.update((sent.name, sequence) for sequence in range(sent.first, sent.last + 1))

    def highest(self, name: str) -> int:
        return max((sent.last for sent in self.log if sent.name == name and sent.is_whole), default=-1)


TestFailovers = Failovers.TestCase
TestFailovers.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_an_entry_in_flight_is_unknown_until_it_is_confirmed() -> None:
    core = Deduplication()
    assert core.judge("p", 5) is DedupVerdict.ACCEPT
    assert core.judge("p", 5) is DedupVerdict.UNKNOWN
    assert core.last("p") == -1
    core.confirmed("p", 5, 1)
    assert core.judge("p", 5) is DedupVerdict.DUPLICATE
    assert core.judge("p", 6) is DedupVerdict.ACCEPT
    assert core.last("p") == 5


def judge(core: Deduplication, number: int, now_ms: int = 0, sequence: int = 7) -> DedupVerdict:
    """Judge one of three chunks of a message."""
    return core.judge("p", sequence, chunk_of(sequence, number, 3), now_ms)


def test_a_chunk_that_is_sent_again_is_a_duplicate_also_before_its_message_is_whole() -> None:
    """An owner was killed while chunks were in flight; consumers drop a message of which one chunk comes twice."""
    core = Deduplication()
    core.replay("p", 7, 1, chunk_of(7, 0, 3))
    core.replay("p", 7, 1, chunk_of(7, 1, 3))
    assert judge(core, 0) is DedupVerdict.DUPLICATE
    assert judge(core, 1) is DedupVerdict.DUPLICATE
    assert judge(core, 2) is DedupVerdict.ACCEPT
    assert judge(core, 2) is DedupVerdict.UNKNOWN
    core.confirmed("p", 7, 1, chunk_of(7, 2, 3))
    assert judge(core, 0) is DedupVerdict.DUPLICATE
    assert judge(core, 2) is DedupVerdict.DUPLICATE
    assert core.chunks("p") is None


def test_a_chunk_in_flight_is_unknown() -> None:
    core = Deduplication()
    assert judge(core, 0) is DedupVerdict.ACCEPT
    assert judge(core, 0) is DedupVerdict.UNKNOWN
    core.confirmed("p", 7, 1, chunk_of(7, 0, 3))
    assert judge(core, 0) is DedupVerdict.DUPLICATE


def test_another_message_under_the_same_sequence_id_is_stored() -> None:
    """A new process cuts the message differently: its chunks do not fit those of the old one."""
    core = Deduplication()
    core.replay("p", 7, 1, Chunk(b"in three", 0, is_last=False))
    assert core.judge("p", 7, Chunk(b"in two", 0, is_last=False)) is DedupVerdict.ACCEPT


def test_a_message_that_begins_again_after_consumers_dropped_it_is_stored_again() -> None:
    core = Deduplication()
    core.replay("p", 7, 1_000, chunk_of(7, 0, 3))
    core.replay("p", 7, 1_000, chunk_of(7, 1, 3))
    later = 1_000 + CHUNKS_MS_MAX + 1
    assert judge(core, 1, later) is DedupVerdict.DUPLICATE  # it does not begin again
    assert judge(core, 0, later - 1) is DedupVerdict.DUPLICATE
    assert judge(core, 0, later) is DedupVerdict.ACCEPT
    assert judge(core, 1, later) is DedupVerdict.ACCEPT


def test_chunks_of_two_messages_in_turns_end_nothing() -> None:
    """No stock client does this, and one that does cannot end the broker."""
    core = Deduplication()
    for sequence in (7, 8, 7, 8):
        assert judge(core, 0, sequence=sequence) is DedupVerdict.ACCEPT
    for sequence in (7, 8, 7, 8):
        core.confirmed("p", sequence, 1, chunk_of(sequence, 0, 3))
    assert core.is_settled("p")


def test_a_finished_message_leaves_no_chunks_behind_in_whatever_order_a_snapshot_is_read() -> None:
    chunks, whole = StoredChunks("p", b"message 7", 7, 1, 5), Remembered("p", 7, 5)
    orders: list[list[Stored]] = [[chunks, whole], [whole, chunks]]
    for snapshot in orders:
        core = Deduplication()
        core.restore(snapshot)
        assert core.snapshot() == [whole]


def test_a_batch_that_is_only_partly_known_is_stored() -> None:
    core = Deduplication()
    core.replay("p", 6, 1)
    assert core.judge("p", 9) is DedupVerdict.ACCEPT


def test_the_producers_that_left_first_are_forgotten_first() -> None:
    core = Deduplication(producers_max=3)
    core.connected("stays")
    core.judge("stays", 1)
    for number in range(5):
        core.replay(f"gone-{number}", 1, number)
    core.confirmed("stays", 1, 9)
    assert len(core) == 4
    assert [one[0] for one in core.snapshot()] == ["gone-2", "gone-3", "gone-4", "stays"]
    core.disconnected("stays", 10)
    assert [one[0] for one in core.snapshot()] == ["gone-3", "gone-4", "stays"]
    assert core.forgotten_early == 3
    assert core.expire(3) == 1
    assert core.expire(4) == 1
    assert core.last("stays") == 1


def test_a_name_that_nobody_can_use_again_is_forgotten_at_once() -> None:
    core = Deduplication()
    core.connected("generated")
    core.judge("generated", 0)
    core.confirmed("generated", 0, 1)
    core.disconnected("generated", 2, forget=True)
    assert len(core) == 0


def test_of_forgotten_names_stays_what_they_begin_with_and_the_last_of_them() -> None:
    core = Deduplication()
    for name, highest, at in (("q/0", 7, 100), ("q/1", 9, 50), ("r/x/0", 3, 100), ("plain", 5, 100)):
        core.replay(name, highest, at)
    core.connected("q/2")
    core.disconnected("q/2", 100)  # it stored nothing
    assert core.last("q/@last.a") == core.last("q/@time.a") == NOTHING
    core.expire(100)
    assert len(core) == 0
    for again in (core, restored(core)):
        assert [again.last(f"{prefix}@last.a") for prefix in ("q/", "r/x/", "r/", "")] == [9, 3, NOTHING, NOTHING]
        assert [again.last(f"{prefix}@time.b") for prefix in ("q/", "r/x/")] == [100, 100]
        assert (again.last("q/0"), again.last("q/@lastly")) == (NOTHING, NOTHING)
    core.replay("q/0", 20, 300)
    core.expire(200)
    assert core.last("q/@last.a") == 9
    core.expire(300)
    assert (core.last("q/@last.a"), core.last("q/@time.a")) == (20, 300)


def restored(core: Deduplication) -> Deduplication:
    """Return what another broker has after reading the snapshot from its ledger."""
    made = Deduplication()
    for record in dedup_record.encode(core.snapshot(), Position(1, 2), -1):
        made.restore(dedup_record.decode(record).producers)
    return made


def test_what_is_kept_of_forgotten_names_is_bounded() -> None:
    """I15."""
    core = Deduplication()
    for number in range(PREFIXES_MAX + 5):
        core.replay(f"{number}/0", 1, number)
    core.expire(PREFIXES_MAX + 5)
    assert core.forgotten_early == 5
    assert len(core.snapshot()) == PREFIXES_MAX
    assert (core.last("4/@last.x"), core.last("5/@last.x")) == (NOTHING, 1)


def test_asking_leaves_nothing_behind() -> None:
    core = Deduplication()
    core.connected("q/@last.a")
    core.disconnected("q/@last.a", 1)
    assert (len(core), core.snapshot()) == (0, [])


def test_a_name_that_is_no_text_is_kept_and_forgotten_as_one() -> None:
    """Protobuf reads the name in the metadata of a stored entry as bytes if it is not UTF-8."""
    core = Deduplication()
    core.replay(b"\xff/0", 5, 1_000)
    assert core.snapshot() == [Remembered("\ufffd/0", 5, 1_000)]
    assert core.expire(2_000) == 1
