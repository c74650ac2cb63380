"""A few permits for many partitions: which are asked, what is taken back, and that no partition is forgotten."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from heliograph.client.aio.consumer.inbox import Inbox, PermitTurns
from tests.examples import examples

PARTS = 4


class FakePart:
    """A partition, and what its broker holds for it."""

    def __init__(self) -> None:
        self.permits = 0
        self.backlog = 0
        self.asked = 0

    def ask(self, permits: int) -> None:
        self.permits = permits
        self.asked += permits


class FakeInbox:
    """How many messages wait for a caller, and whether one waits for them."""

    held = 0
    waiters = 0


class FakeLoop:
    """Timers that a test runs."""

    def __init__(self) -> None:
        self.due: deque[Any] = deque()

    def call_later(self, seconds: float, call: Any) -> object:
        self.due.append(call)
        return object()


class Turns(RuleBasedStateMachine):
    """Callers come and go, partitions have messages or not, and may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox, self.loop = FakeInbox(), FakeLoop()
        self.limit = 2
        self.turns = PermitTurns(cast(Inbox, self.inbox), self.limit, cast(asyncio.AbstractEventLoop, self.loop))
        self.parts = [FakePart() for _ in range(PARTS)]
        self.connected: set[int] = set()
        for place in range(PARTS):
            self.connect(place)

    @rule(place=st.integers(0, PARTS - 1))
    def connect(self, place: int) -> None:
        """A partition is subscribed again, with no permit."""
        self.parts[place].permits = 0
        self.connected.add(place)
        self.turns.join(cast(Any, self.parts[place]))

    @rule(place=st.integers(0, PARTS - 1))
    def lose(self, place: int) -> None:
        self.parts[place].permits = 0
        self.connected.discard(place)
        self.turns.leave(cast(Any, self.parts[place]))

    @rule(place=st.integers(0, PARTS - 1), messages=st.integers(1, 3))
    def publish(self, place: int, messages: int) -> None:
        self.parts[place].backlog += messages

    @rule(place=st.integers(0, PARTS - 1))
    def deliver(self, place: int) -> None:
        part = self.parts[place]
        if place in self.connected and part.permits and part.backlog:
            part.permits -= 1
            self.turns.answered(cast(Any, part))
            if not self.turns.is_full:
                part.backlog -= 1
                self.inbox.held += 1
                self.inbox.waiters = 0
                self.turns.end_surplus()

    @rule()
    def take(self) -> None:
        if self.inbox.held:
            self.inbox.held -= 1
            self.turns.next()

    @precondition(lambda self: not self.inbox.held)
    @rule()
    def wait(self) -> None:
        self.inbox.waiters = 1
        self.turns.next()

    @rule()
    def time_passes(self) -> None:
        while self.loop.due:
            self.loop.due.popleft()()

    @invariant()
    def as_much_is_asked_for_as_may_be(self) -> None:
        asked = {place for place in self.connected if self.parts[place].permits}
        assert {place for place in self.connected if self.turns.has_asked(cast(Any, self.parts[place]))} == asked
        assert self.inbox.held <= self.limit
        if not self.inbox.waiters and self.inbox.held:
            assert len(asked) + self.inbox.held <= self.limit, "a message has come: the others are not wanted"
        if not self.inbox.held:
            assert len(asked) >= min(self.limit, len(self.connected)), "something is always asked for"
        if self.inbox.waiters and not self.loop.due and not self.inbox.held:
            assert asked == self.connected, "a caller that has waited gets it from wherever it is"


Turns.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase


def test_every_partition_has_its_turn() -> None:
    inbox, parts = FakeInbox(), [FakePart() for _ in range(PARTS)]
    turns = PermitTurns(cast(Inbox, inbox), 1, cast(asyncio.AbstractEventLoop, FakeLoop()))
    for part in parts:
        turns.join(cast(Any, part))
    for _ in range(3 * PARTS):
        (asked,) = [part for part in parts if part.permits]
        asked.permits = 0
        turns.answered(cast(Any, asked))
        turns.next()
    assert {part.asked for part in parts} <= {3, 4}


def test_without_a_queue_one_is_asked_for_each_waiting_caller() -> None:
    inbox, parts = FakeInbox(), [FakePart() for _ in range(PARTS)]
    loop = FakeLoop()
    turns = PermitTurns(cast(Inbox, inbox), 0, cast(asyncio.AbstractEventLoop, loop))
    for part in parts:
        turns.join(cast(Any, part))
    assert not any(part.permits for part in parts), "nobody waits"
    inbox.waiters = 1
    turns.next()
    assert sum(part.permits for part in parts) == 1
    loop.due.popleft()()
    assert all(part.permits for part in parts), "a caller that has waited gets it from wherever it is"
    (first, *_) = parts
    first.permits = 0
    turns.answered(cast(Any, first))
    assert not turns.is_full
    inbox.held, inbox.waiters = 1, 0
    turns.end_surplus()
    assert not any(part.permits for part in parts)
    inbox.held = 0
    assert turns.is_full, "what comes when nobody waits goes back"
