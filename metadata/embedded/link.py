"""The client's session: one connection at a time, made again when it breaks, until the session is LOST.

The times and the reason why LOST is safe are in ``metadata/embedded/limits.py``. The clock is the one that also runs
while the machine sleeps, so a sleeper finds its session lost when it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from heliograph.errors import HeliographError
from metadata.embedded.calls import Call, CallQueue, OnResult
from metadata.embedded.channel import Channel
from metadata.embedded.limits import (
    ANSWER_MS_MAX,
    CALL_WAIT_MS_MAX,
    CLOSE_MS_MAX,
    LOST_SHARE,
    PINGS_PER_TIMEOUT,
    RECONNECT_PAUSE_MS,
    RECONNECT_PAUSE_MS_MAX,
    RESET_WATCHES_MAX,
    SILENCE_SHARE,
)
from metadata.embedded.protocol import MAGIC, PROTOCOL_VERSION, Notice, Op, event_type
from metadata.embedded.watchers import Watchers
from metadata.errors import ConnectionLossError, ProtocolError, SessionExpiredError
from metadata.store import SessionListener, SessionState, WatchEvent

TICK_SECONDS_MAX = 0.2
ATTEMPT_SECONDS_MIN = 1.0  # what one attempt to connect gets at least, while there is time


class Link:
    """A session. Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, host: str, port: int, timeout_ms: int) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._calls = CallQueue()
        self._channel: Channel | None = None
        self._state = SessionState.SUSPENDED
        self._listeners: list[SessionListener] = []
        self._confirmed_at = 0.0  # when the latest call that was answered had been sent
        self._heard_at = 0.0
        self._pinged_at = 0.0
        self._disconnected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.watchers = Watchers()
        self.session_id = 0
        self.password = ""

    @classmethod
    async def open(cls, host: str, port: int, timeout_ms: int, connect_ms: int) -> Link:
        """Begin a new session.

        Raises:
            ConnectionLossError: no answer within ``connect_ms``; says what happened last.
            BadRequestError: the server speaks another version of the protocol.
        """
        link = cls(host, port, timeout_ms)
        deadline = _now() + connect_ms / 1000
        try:
            await link._connect_until(lambda: deadline)
        except BaseException:
            link._drop_channel()
            raise
        link._set_state(SessionState.CONNECTED)
        link._keeper = link._loop.create_task(link._keep_connected())
        link._ticker = link._loop.create_task(link._tick_forever())
        return link

    @property
    def state(self) -> SessionState:
        """The state now; exact, also when the loop was held up and no timer could run (I13)."""
        if self._state is not SessionState.LOST and _now() >= self._lost_at:
            self._loop.call_soon(self._lose)
            return SessionState.LOST
        return self._state

    @property
    def timeout_ms(self) -> int:
        """As granted by the server."""
        return round(self._timeout * 1000)

    def add_listener(self, listener: SessionListener) -> None:
        """Have ``listener`` called with each new state."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Not have it called any more; nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    async def call(self, op: Op, *arguments: Any, on_result: OnResult | None = None) -> Any:
        """Send a request and wait for its answer; requests are sent in the order of these calls.

        Args:
            on_result: called with the result before anything that the server sent later is looked at.

        Raises:
            ConnectionLossError: not sent for want of a connection, or no answer came.
            SessionExpiredError: the session is over; the request was not sent or did nothing.
            HeliographError: as the server answered.
        """
        if self.state is SessionState.LOST:
            raise self._over()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.enqueue(self._calls.new(op, arguments, _now(), future, on_result))
        self._pump()
        return await future

    def tell(self, op: Op, *arguments: Any) -> None:
        """Send a request whose answer nobody needs, if there is a connection."""
        if self._state is SessionState.CONNECTED:
            self._send(self._calls.new(op, arguments, _now()))

    async def close(self) -> None:
        """End the session; the server hears of it if it can be reached now, else it will expire. Idempotent."""
        connected = self.state is SessionState.CONNECTED
        if self._state is SessionState.LOST:
            await self._stop()
            return
        # The owner hears LOST before the server can drop the ephemerals (I13).
        self._announce_lost()
        if connected:
            future: asyncio.Future[Any] = self._loop.create_future()
            self._send(self._calls.new(Op.CLOSE, (), _now(), future))
            await asyncio.wait([future], timeout=CLOSE_MS_MAX / 1000)
            if future.done() and not future.cancelled():
                future.exception()
        await self._stop()

    @property
    def _lost_at(self) -> float:
        return self._confirmed_at + self._timeout * LOST_SHARE

    async def _keep_connected(self) -> None:
        while True:
            await self._disconnected.wait()
            try:
                await self._connect_until(lambda: self._lost_at)
                await self._reset_watches()
            except ConnectionLossError:
                if _now() < self._lost_at:
                    continue
                self._lose()
                return
            except HeliographError:
                self._lose()
                return
            if self._channel is not None:
                self._set_state(SessionState.CONNECTED)
                self._pump()

    async def _connect_until(self, deadline: Callable[[], float]) -> None:
        """Connect and (re-)attach the session, trying again until the deadline.

        Raises:
            ConnectionLossError: the deadline passed.
            HeliographError: the server refused for good.
        """
        pause_ms, failure = RECONNECT_PAUSE_MS, "no time was left"
        while (remaining := deadline() - _now()) > 0:
            try:
                attempt = max(self._timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN)
                async with asyncio.timeout(min(remaining, attempt)):
                    await self._connect_once()
                    return
            except TimeoutError:
                failure = "no answer"
            except (OSError, ConnectionLossError) as error:
                failure = str(error) or type(error).__name__
            self._drop_channel()
            pause = random.uniform(0.5, 1) * pause_ms / 1000
            await asyncio.sleep(max(0.0, min(pause, deadline() - _now())))
            pause_ms = min(pause_ms * 2, RECONNECT_PAUSE_MS_MAX)
        raise ConnectionLossError(f"no metadata server can be reached at {self._host}:{self._port}: {failure}")

    async def _connect_once(self) -> None:
        self._disconnected.clear()
        channel = Channel(self._on_frame, self._on_disconnected)
        await self._loop.create_connection(lambda: channel, self._host, self._port)
        self._channel = channel
        self._heard_at = self._pinged_at = _now()
        timeout_ms = round(self._timeout * 1000)
        arguments = (MAGIC, PROTOCOL_VERSION, timeout_ms, self.session_id, self.password)
        self.session_id, self.password, timeout_ms = await self._request(Op.HELLO, arguments)
        self._timeout = timeout_ms / 1000

    async def _reset_watches(self) -> None:
        items = self.watchers.reset_items()
        for start in range(0, len(items), RESET_WATCHES_MAX):
            await self._request(Op.RESET_WATCHES, (items[start : start + RESET_WATCHES_MAX],))

    async def _request(self, op: Op, arguments: tuple[Any, ...]) -> Any:
        """A request of our own, ahead of every waiting call."""
        if self._channel is None:
            raise ConnectionLossError("the connection was lost")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(self._calls.new(op, arguments, _now(), future))
        return await future

    def _send(self, call: Call) -> None:
        if self._channel is None:
            call.fail(ConnectionLossError("the connection was lost; the call was not sent"))
            return
        self._calls.sent(call, _now())
        self._channel.put(call.frame)

    def _pump(self) -> None:
        while self._state is SessionState.CONNECTED and (call := self._calls.next_to_send()) is not None:
            self._send(call)

    def _on_frame(self, frame: list[Any]) -> None:
        now = _now()
        if self._state is not SessionState.LOST and self.session_id and now >= self._lost_at:
            self._lose()  # the answer came too late to prove anything (I13)
        self._heard_at = now
        request_id = frame[0]
        if request_id == 0:
            self._on_notice(frame)
            return
        if len(frame) != 3:
            raise ProtocolError("an answer has three parts")
        answered = self._calls.answer(*frame)
        if answered is None:
            return
        sent_at, error = answered
        if isinstance(error, SessionExpiredError):
            self._lose()
        elif self._state is not SessionState.LOST:
            self._confirmed_at = max(self._confirmed_at, sent_at)
            self._pump()

    def _on_notice(self, frame: list[Any]) -> None:
        if frame[1] == Notice.SESSION_ENDED:
            self._lose()
        elif frame[1] == Notice.EVENT and len(frame) == 5:
            # In the queue of the loop, behind the waiters of the answers that came before this event.
            event = WatchEvent(event_type(frame[3]), frame[4])
            self._loop.call_soon(self.watchers.fire, frame[2], event)
        else:
            raise ProtocolError(f"unknown notice {frame[1]}")

    def _on_disconnected(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        if self._state is SessionState.CONNECTED:
            self._set_state(SessionState.SUSPENDED)
        self._calls.fail_in_flight(
            ConnectionLossError("the connection to the metadata server was lost; the outcome of the call is unknown")
        )
        self._disconnected.set()

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.abort()
            self._on_disconnected(self._channel)

    async def _tick_forever(self) -> None:
        tick = min(TICK_SECONDS_MAX, self._timeout / PINGS_PER_TIMEOUT / 2)
        last = _now()
        while self._state is not SessionState.LOST:
            await asyncio.sleep(max(0.0, min(tick, self._lost_at - last)))
            now = _now()
            if now - last > 2 * tick:
                self._heard_at = now  # we slept: what we did not hear may be waiting to be read
            last = now
            self._tick(now)

    def _tick(self, now: float) -> None:
        if now >= self._lost_at:
            self._lose()
            return
        self._calls.fail_waiting(
            ConnectionLossError("no connection to the metadata server; the call was not sent"),
            began_before=now - CALL_WAIT_MS_MAX / 1000,
        )
        if self._state is not SessionState.CONNECTED:
            return
        sent_at = self._calls.oldest_sent_at()
        if sent_at is not None:
            silent = now - max(self._heard_at, sent_at)
            if silent > self._timeout * SILENCE_SHARE or now - sent_at > ANSWER_MS_MAX / 1000:
                self._drop_channel()
                return
        if now - self._pinged_at >= self._timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = now
            self.tell(Op.PING)

    def _lose(self) -> None:
        if self._state is SessionState.LOST:
            return
        self._announce_lost()
        self._drop_channel()
        if self._keeper is not None:
            self._keeper.cancel()

    def _announce_lost(self) -> None:
        self._set_state(SessionState.LOST)
        self.watchers.clear()
        self._calls.fail_waiting(self._over())

    async def _stop(self) -> None:
        self._drop_channel()
        tasks = [task for task in (self._keeper, self._ticker) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _set_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a session listener failed", "exception": error})

    def _over(self) -> SessionExpiredError:
        return SessionExpiredError(f"metadata session {self.session_id:#x} is over")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
