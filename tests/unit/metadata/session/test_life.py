"""The life of a session and its watches, without a backend: states, endpoints in turn, watches and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from typing_extensions import override

from heliograph.base.errors import HeliographError, NotPermittedError
from heliograph.metadata.backends.etcd.watching.watch_feed import EtcdWatch, EtcdWatchTable
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session.clock import SessionClock, now
from heliograph.metadata.session.reconnector import ReconnectingSession, Reconnector
from heliograph.metadata.session.standing_watches import StandingWatch, StandingWatches
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, SessionState, WatchEvent
from tests.waits import until

CHANGED = WatchEvent(EventType.CHANGED, "/a")
DELETED = WatchEvent(EventType.DELETED, "/a")


class ScriptedSession(ReconnectingSession):
    """A session whose attempts to attach fail as the test says. It records what is done to it."""

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__(10_000)
        self.outcomes = list(outcomes)
        self.done: list[object] = []
        self.clock.add_listener(self.done.append)

    @property
    @override
    def attempt_seconds(self) -> float:
        return 5.0

    @override
    async def attach(self, endpoint: str, seconds: float) -> None:
        self.done.append(endpoint)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        self.clock.confirm(now())
        self.clock.turn(SessionState.CONNECTED)

    @override
    def is_final(self, error: HeliographError) -> bool:
        return not isinstance(error, ConnectionLossError)

    @override
    def drop(self) -> None:
        self.done.append("drop")

    @override
    def _on_lost(self) -> None:
        self.done.append("on_lost")

    @override
    async def _end_at_store(self, state: SessionState) -> None:
        self.done.append(("end", state))

    def run_with(self, reconnector: Reconnector) -> None:
        self._start_tasks(reconnector.run())


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def test_a_session_moves_by_its_table() -> None:
    clock = SessionClock(10.0)
    clock.turn(SessionState.CONNECTED)
    clock.turn(SessionState.SUSPENDED)
    clock.check()
    clock.turn(SessionState.LOST)
    with pytest.raises(SessionExpiredError):
        clock.check()
    for state in (SessionState.CONNECTED, SessionState.SUSPENDED):
        with pytest.raises(AssertionError):
            clock.turn(state)


async def test_a_session_ends_once_and_its_owner_hears_of_it_first() -> None:  # I13
    session = ScriptedSession(None)
    await session.attach("one", 1.0)
    await session.close()
    session.lose()
    connected, lost = SessionState.CONNECTED, SessionState.LOST
    assert session.done == ["one", connected, lost, "on_lost", ("end", connected), "drop"]
    await session.close()
    assert session.done[6:] == ["drop"]


async def test_endpoints_are_tried_in_turn_until_one_attaches() -> None:
    session = ScriptedSession(OSError("refused"), TimeoutError(), ConnectionLossError("cut"), None)
    reconnector = Reconnector(session, ["one", "two"])
    deadline = now() + 30
    await reconnector.attach_until(lambda: deadline)
    assert session.done == ["one", "drop", "two", "drop", "one", "drop", "two", SessionState.CONNECTED]
    assert reconnector.failures == {"one": "cut", "two": "no answer in 5.0 s"}
    session.outcomes = [None]
    session.clock.turn(SessionState.SUSPENDED)
    session.run_with(reconnector)
    reconnector.connection_lost("two", "gone")
    await until(lambda: session.clock.state is SessionState.CONNECTED)
    assert session.done[-2] == "one"  # the one after the endpoint that was lost
    await session.close()


async def test_attempts_end_at_the_deadline_or_with_an_answer_for_good() -> None:
    session = ScriptedSession(ConnectionLossError("cut"), NotPermittedError("no"))
    reconnector = Reconnector(session, ["one"])
    with pytest.raises(ConnectionLossError, match="one: not tried yet"):
        await reconnector.attach_until(lambda: now() - 1)
    deadline = now() + 30
    with pytest.raises(NotPermittedError):
        await reconnector.attach_until(lambda: deadline)


async def test_a_one_shot_watch_is_delivered_once_and_a_removed_one_never() -> None:
    watches: StandingWatches[StandingWatch] = StandingWatches()
    told: list[WatchEvent] = []
    once = watches.add(StandingWatch(WatchKind.DATA, "/a", told.append))
    always = watches.add(StandingWatch(WatchKind.RECURSIVE, "/", told.append))
    removed = watches.add(StandingWatch(WatchKind.DATA, "/a", told.append))
    assert watches.matching(CHANGED) == [once, removed, always]
    assert watches.remove(removed)
    assert not watches.remove(removed)
    for watch in (once, removed, always, once, always):
        watches.deliver(watch, CHANGED)
    assert told == [CHANGED] * 3
    assert list(watches) == [always]
    watches.clear()
    watches.deliver(always, CHANGED)
    assert (len(told), len(watches)) == (3, 0)
    once.arm(None)
    with pytest.raises(AssertionError):
        once.arm(None)


async def test_an_event_that_came_before_the_answer_is_told_before_a_later_one() -> None:
    watches, told = EtcdWatchTable(), list[WatchEvent]()
    watch = watches.add(EtcdWatch(WatchKind.RECURSIVE, "/", told.append))
    watches.publish(6, [CHANGED])
    watches.arm_at(watch, 5, None)
    watches.publish(7, [DELETED])  # before the loop has delivered the earlier one
    assert told == []
    await asyncio.sleep(0)
    assert told == [CHANGED, DELETED]
