"""The parts that the clients of all backends share: clock, call queue, heartbeat, reconnector, watches; bad URLs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session import session
from heliograph.metadata.session.call_queue import Call, CallQueue
from heliograph.metadata.session.clock import SessionClock
from heliograph.metadata.session.limits import (
    ANSWER_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    CALLS_WAITING_MAX,
    DOUBT_SHARE,
    SILENCE_SHARE,
)
from heliograph.metadata.session.session import Heartbeat
from heliograph.metadata.store import SessionState

TIMEOUT = 30.0
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class World:
    """A session on a clock that the test moves, and what was done to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1_000.0
        for module in ("clock", "call_queue", "session"):
            monkeypatch.setattr(f"heliograph.metadata.session.{module}.now", lambda: self.time)
        monkeypatch.setattr(session, "CALL_WAIT_SECONDS_MAX", CALL_WAIT_SECONDS_MAX)
        self.done: list[object] = []
        self.clock = SessionClock(TIMEOUT)
        self.calls: CallQueue[Call] = CallQueue(2)
        self.heartbeat = Heartbeat(self, self.clock, self.calls)
        self.clock.add_listener(self.done.append)
        self.is_attached = True

    def ping(self) -> None:
        self.done.append("ping")

    def drop(self) -> None:
        self.done.append("drop")

    def look(self, after: float = 0.0, held_up: float = 0.0) -> list[object]:
        """Let the heartbeat look at the clock so much later. Return what it does."""
        self.time += after
        before = len(self.done)
        self.heartbeat._look(self.time, held_up)
        return self.done[before:]

    def call(self) -> Call:
        return Call(asyncio.get_running_loop().create_future())


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_a_session_is_in_doubt_by_the_clock_and_lost_by_the_stores_word_only(world: World) -> None:  # I13
    clock = world.clock
    assert (clock.state, clock.confirmed_at, clock.silent_seconds) == (SUSPENDED, float("inf"), 0)
    clock.confirm(world.time)
    clock.turn(CONNECTED)
    clock.turn(CONNECTED)
    world.time += TIMEOUT * DOUBT_SHARE - 0.01
    assert not clock.is_in_doubt
    clock.confirm(world.time - 10)
    clock.confirm(world.time - 15)  # an answer that came out of order proves nothing new
    assert clock.confirmed_at == world.time - 10
    world.time += TIMEOUT
    assert clock.is_in_doubt
    assert clock.silent_seconds == TIMEOUT + 10
    assert world.done == [CONNECTED]  # nothing is given up
    clock.confirm(world.time - 1)
    assert not clock.is_in_doubt
    clock.turn(LOST)
    assert clock.is_in_doubt
    with pytest.raises(SessionExpiredError):
        clock.check()


async def test_a_listener_that_fails_or_leaves_keeps_nothing_from_the_others(world: World) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    world.clock.remove_listener(world.done.append)

    def fail(state: SessionState) -> None:
        raise ValueError(state)

    world.clock.add_listener(fail)
    world.clock.add_listener(world.done.append)
    world.clock.turn(CONNECTED)
    assert world.done == [CONNECTED]
    assert [type(error) for error in reported] == [ValueError]
    world.clock.remove_listener(fail)
    world.clock.remove_listener(fail)
    world.clock.turn(LOST)
    assert (world.done, len(reported)) == ([CONNECTED, LOST], 1)


async def test_a_heartbeat_pings_and_gives_up_a_silent_connection_but_never_the_session(world: World) -> None:
    world.clock.confirm(world.time)
    world.heartbeat.begin()
    world.clock.turn(CONNECTED)
    assert world.look() == []
    assert world.look(TIMEOUT / 6) == ["ping"]
    world.calls.sent(world.call(), 1)
    world.heartbeat.heard()
    assert world.look(TIMEOUT * SILENCE_SHARE - 0.01) == ["ping"]
    assert world.look(0.02) == ["drop"]
    world.is_attached = False
    assert world.look(1) == []
    assert world.look(100 * TIMEOUT) == []  # I13
    world.clock.turn(LOST)
    await asyncio.wait_for(world.heartbeat.run(), 60)  # there is nothing left to do


async def test_time_in_which_the_loop_did_not_run_counts_against_nothing(world: World) -> None:
    """A full collection of Python's with 50,000 open topics takes longer than an answer may, and all answers wait."""
    world.clock.confirm(world.time)
    world.heartbeat.begin()
    world.clock.turn(CONNECTED)
    world.look()
    sent, waiting = world.call(), world.call()
    world.calls.sent(sent, 1)
    world.calls.enqueue(waiting)
    held_up = 2 * ANSWER_SECONDS_MAX
    assert world.look(held_up + 1, held_up) == ["ping"], "the connection stands"
    assert not waiting.is_over, "its turn may have come meanwhile"
    assert waiting.future is not None
    waiting.future.cancel()
    assert world.look(held_up + 1, held_up) == ["ping"]
    left = ANSWER_SECONDS_MAX - 2
    while left > 0:  # others are answered, this call is not
        world.heartbeat.heard()
        left -= 1
        assert "drop" not in world.look(1)
    world.heartbeat.heard()
    assert world.look(0.1) == ["drop"], "the time in which the loop ran counts"


async def test_time_in_which_the_loop_did_not_run_counts_against_none_of_the_calls(world: World) -> None:
    """The answers come one after another, and the calls that wait for a connection get one a little later."""
    world.clock.confirm(world.time)
    world.heartbeat.begin()
    world.clock.turn(CONNECTED)
    world.look()
    first, second, waiting = world.call(), world.call(), world.call()
    world.calls.sent(first, 1)
    world.time += 0.1
    world.calls.sent(second, 2)
    world.calls.enqueue(waiting)
    held_up = 2 * ANSWER_SECONDS_MAX
    world.look(held_up + 1, held_up)
    world.calls.answered(1)
    assert world.look(1) == [], "the second call, too, has waited for two seconds"
    assert not waiting.is_over
    world.heartbeat.heard()
    assert "drop" not in world.look(CALL_WAIT_SECONDS_MAX - 2.2)
    assert not waiting.is_over
    world.look(0.3)
    assert waiting.is_over
    assert waiting.future is not None
    assert isinstance(waiting.future.exception(), ConnectionLossError)


async def test_a_heartbeat_that_wakes_late_says_how_long_the_loop_did_not_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = iter([0.5, 40.0, 0.5])
    looks: list[float] = []

    async def sleep(seconds: float) -> None:
        world.time += next(late)

    def look(moment: float, held_up: float) -> None:
        looks.append(held_up)
        if len(looks) == 3:
            world.clock.turn(LOST)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(world.heartbeat, "_look", look)
    world.clock.turn(CONNECTED)
    await world.heartbeat.run()
    assert looks == [0.0, 39.5, 0.0]


async def test_calls_go_out_in_order_within_the_window_and_wait_a_bounded_time(world: World) -> None:
    world.clock.confirm(world.time)
    calls = [world.call() for _ in range(4)]
    for call in calls:
        world.calls.enqueue(call)
    assert calls[1].future is not None
    calls[1].future.cancel()
    for key in (0, 2):
        following = world.calls.next_to_send()
        assert following is calls[key]
        world.calls.sent(following, key)
    assert world.calls.next_to_send() is None
    assert not world.calls.has_room
    assert world.calls.answered(7) is None
    assert world.calls.answered(0) is calls[0]
    world.is_attached = False
    world.look(CALL_WAIT_SECONDS_MAX + 0.01)
    assert calls[3].future is not None
    with pytest.raises(ConnectionLossError, match="not sent"):
        await calls[3].future
    world.calls.fail_in_flight(SessionExpiredError("over"))
    assert calls[2].future is not None
    with pytest.raises(SessionExpiredError):
        await calls[2].future
    assert world.calls.oldest_sent_at() is None
    for _ in range(CALLS_WAITING_MAX):
        world.calls.enqueue(calls[0])
    with pytest.raises(ConnectionLossError, match=str(CALLS_WAITING_MAX)):  # I15
        world.calls.enqueue(calls[0])


@pytest.mark.parametrize("url", ["ftp://me:secret@h:1", "h:1", "", "memory://"])
def test_a_url_of_no_backend_is_refused_with_the_schemes_there_are(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="embedded, embeddeds, etcd, etcds, zk, memory") as raised:
        asyncio.run(connect_store(url))
    assert raised.value.field == "url"
    assert "secret" not in str(raised.value)
