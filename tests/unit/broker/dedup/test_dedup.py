"""The core of deduplication compared with a naive model over failovers (hypothesis), and its bounds."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.dedup.dedup import INACTIVE_MS_MAX, Deduplication, DedupVerdict, Remembered

NAMES = ("a", "b", "c")


class Failovers(RuleBasedStateMachine):
    """Producers that send, lose answers and send again to brokers that crash. ``log`` holds what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Deduplication()
        self.log: list[tuple[str, int, int, bool]] = []  # name, first, last, is_whole
        self.flight: deque[tuple[str, int, int, bool]] = deque()
        self.snapshot: tuple[int, list[tuple[str, int, int]]] = (0, [])
        self.next = dict.fromkeys(NAMES, 0)
        self.unacked: dict[str, list[tuple[int, int, bool]]] = {name: [] for name in NAMES}
        self.acked: set[tuple[str, int]] = set()
        for name in NAMES:
            self.core.connected(name)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 4))
    def send(self, name: str, count: int) -> None:
        first = self.next[name]
        self.next[name] += count
        self.unacked[name].append((first, first + count - 1, True))
        assert self.push(name, first, first + count - 1) is DedupVerdict.ACCEPT

    @rule(name=st.sampled_from(NAMES), chunks=st.integers(2, 3))
    def send_chunks(self, name: str, chunks: int) -> None:
        sequence = self.next[name]
        self.next[name] += 1
        for number in range(chunks):
            is_whole = number == chunks - 1
            self.unacked[name].append((sequence, sequence, is_whole))
            assert self.push(name, sequence, sequence, is_whole) is DedupVerdict.ACCEPT

    @rule(name=st.sampled_from(NAMES))
    def send_again(self, name: str) -> None:
        """Send everything unacknowledged again, in order, as after a reconnect."""
        for first, last, is_whole in list(self.unacked[name]):
            if self.push(name, first, last, is_whole) is DedupVerdict.DUPLICATE:
                self.acknowledge(name, first, last, is_whole)

    @rule(name=st.sampled_from(NAMES), back=st.integers(1, 5))
    def send_old(self, name: str, back: int) -> None:
        """Send old entries from a new process of the producer that starts over too early."""
        sequence = self.next[name] - back
        if sequence >= 0:
            verdict = self.push(name, sequence, sequence)
            assert verdict is not DedupVerdict.ACCEPT or sequence > self.highest(name)

    @rule(count=st.integers(1, 5), is_answered=st.booleans())
    def confirm(self, count: int, is_answered: bool) -> None:
        for _ in range(min(count, len(self.flight))):
            name, first, last, is_whole = self.flight.popleft()
            self.log.append((name, first, last, is_whole))
            self.core.confirmed(name, last, 0, is_whole=is_whole)
            if is_answered:
                self.acknowledge(name, first, last, is_whole)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = (len(self.log), list(self.core.snapshot()))

    @rule(kept=st.integers(0, 5))
    def fail_over(self, kept: int) -> None:
        """Recover some of the entries in flight; the next owner starts from the last snapshot."""
        self.log += [self.flight[at] for at in range(min(kept, len(self.flight)))]
        self.flight.clear()
        position, remembered = self.snapshot
        self.core = Deduplication()
        self.core.restore(Remembered(*one) for one in remembered)
        for name, _, last, is_whole in self.log[position:]:
            self.core.replay(name, last, 0, is_whole=is_whole)
        for name in NAMES:
            self.core.connected(name)
            assert self.core.last(name) == self.highest(name)
            self.send_again(name)

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        stored = [(name, last) for name, _, last, is_whole in (*self.log, *self.flight) if is_whole]
        assert len(stored) == len(set(stored))

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        stored = {
            (name, sequence)
            for name, first, last, is_whole in self.log
            if is_whole
            for sequence in range(first, last + 1)
        }
        assert self.acked <= stored

    def push(self, name: str, first: int, last: int, is_whole: bool = True) -> DedupVerdict:
        verdict = self.core.judge(name, last, is_whole=is_whole)
        if verdict is DedupVerdict.ACCEPT:
            self.flight.append((name, first, last, is_whole))
            assert not self.core.is_settled(name)
        return verdict

    def acknowledge(self, name: str, first: int, last: int, is_whole: bool) -> None:
        if (first, last, is_whole) in self.unacked[name]:
            self.unacked[name].remove((first, last, is_whole))
        if is_whole:
            self.acked.update((name, sequence) for sequence in range(first, last + 1))

    def highest(self, name: str) -> int:
        return max((last for one, _, last, is_whole in self.log if one == name and is_whole), default=-1)


TestFailovers = Failovers.TestCase
TestFailovers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_entry_in_flight_is_unknown_until_it_is_confirmed() -> None:
    core = Deduplication()
    assert core.judge("p", 5) is DedupVerdict.ACCEPT
    assert core.judge("p", 5) is DedupVerdict.UNKNOWN
    assert core.last("p") == -1
    core.confirmed("p", 5, 1)
    assert core.judge("p", 5) is DedupVerdict.DUPLICATE
    assert core.judge("p", 6) is DedupVerdict.ACCEPT
    assert core.last("p") == 5


def test_chunks_are_judged_by_their_whole_message() -> None:
    core = Deduplication()
    assert core.judge("p", 7, is_whole=False) is DedupVerdict.ACCEPT
    assert core.judge("p", 7, is_whole=False) is DedupVerdict.ACCEPT  # sent again before the message was whole
    assert core.judge("p", 7) is DedupVerdict.ACCEPT
    assert core.judge("p", 7, is_whole=False) is DedupVerdict.UNKNOWN
    for is_whole in (False, False, True):
        core.confirmed("p", 7, 1, is_whole=is_whole)
    assert core.judge("p", 7, is_whole=False) is DedupVerdict.DUPLICATE


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
    assert [one.name for one in core.snapshot()] == ["gone-2", "gone-3", "gone-4", "stays"]
    core.disconnected("stays", 10)
    assert [one.name for one in core.snapshot()] == ["gone-3", "gone-4", "stays"]
    assert core.expire(4 + INACTIVE_MS_MAX) == 2
    assert core.last("stays") == 1


def test_a_name_that_nobody_can_use_again_is_forgotten_at_once() -> None:
    core = Deduplication()
    core.connected("generated")
    core.judge("generated", 0)
    core.confirmed("generated", 0, 1)
    core.disconnected("generated", 2, forget=True)
    assert len(core) == 0
