"""The client's session: one connection at a time, made again when it breaks, until the session is LOST."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from heliograph.errors import HeliographError
from metadata.embedded.calls import OnResult, Request, Requests
from metadata.embedded.channel import Channel
from metadata.embedded.limits import ATTEMPT_SECONDS_MIN, RESET_WATCHES_MAX
from metadata.embedded.protocol import MAGIC, PROTOCOL_VERSION, Notice, Op, event_type
from metadata.embedded.watchers import Watchers
from metadata.errors import ConnectionLossError, ProtocolError, SessionExpiredError
from metadata.heartbeat import Heartbeat
from metadata.session_clock import SessionClock, now
from metadata.session_limits import CLOSE_SECONDS_MAX, RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX, SILENCE_SHARE
from metadata.store import SessionState, WatchEvent


class Link:
    """A session. Made by ``open``; every method is called on the loop that opened it."""

    def __init__(self, host: str, port: int, timeout_ms: int) -> None:
        self._host = host
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._requests = Requests()
        self._channel: Channel | None = None
        self._disconnected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self.clock = SessionClock(timeout_ms / 1000, self.lose)
        self._heartbeat = Heartbeat(self, self.clock, self._requests)
        self.watchers = Watchers()
        self.password = ""

    @classmethod
    async def open(cls, host: str, port: int, timeout_ms: int, connect_ms: int) -> Link:
        """Begin a new session.

        Raises:
            ConnectionLossError: no answer within ``connect_ms``; says what happened last.
            BadRequestError: the server speaks another version of the protocol.
        """
        link = cls(host, port, timeout_ms)
        deadline = now() + connect_ms / 1000
        try:
            await link._connect_until(lambda: deadline)
        except BaseException:
            link.drop()
            raise
        link.clock.turn(SessionState.CONNECTED)
        link._keeper = link._loop.create_task(link._keep_connected())
        link._ticker = link._loop.create_task(link._heartbeat.run())
        return link

    @property
    def is_attached(self) -> bool:
        """See Patient."""
        return self.clock.announced is SessionState.CONNECTED

    async def call(self, op: Op, *arguments: Any, on_result: OnResult | None = None) -> Any:
        """Send a request and wait for its answer; requests are sent in the order of these calls.

        Args:
            on_result: called with the result before anything that the server sent later is looked at.

        Raises:
            ConnectionLossError: not sent for want of a connection, or no answer came.
            SessionExpiredError: the session is over; the request was not sent or did nothing.
            HeliographError: as the server answered.
        """
        if self.clock.state is SessionState.LOST:
            raise self.clock.over
        future: asyncio.Future[Any] = self._loop.create_future()
        self._requests.enqueue(self._requests.new(op, arguments, future, on_result))
        self._pump()
        return await future

    def tell(self, op: Op, *arguments: Any) -> None:
        """Send a request whose answer nobody needs, if there is a connection."""
        if self.is_attached:
            self._send(self._requests.new(op, arguments))

    def ping(self) -> None:
        """See Patient."""
        self.tell(Op.PING)

    async def close(self) -> None:
        """End the session; the server hears of it if it can be reached now, else it will expire. Idempotent."""
        connected = self.clock.state is SessionState.CONNECTED
        if self.clock.is_lost:
            await self._stop()
            return
        # The owner hears LOST before the server can drop the ephemerals (I13).
        self._announce_lost()
        if connected:
            future: asyncio.Future[Any] = self._loop.create_future()
            self._send(self._requests.new(Op.CLOSE, (), future))
            await asyncio.wait([future], timeout=CLOSE_SECONDS_MAX)
            if future.done() and not future.cancelled():
                future.exception()
        await self._stop()

    async def _keep_connected(self) -> None:
        while True:
            await self._disconnected.wait()
            try:
                await self._connect_until(lambda: self.clock.lost_at)
                await self._reset_watches()
            except ConnectionLossError:
                if now() < self.clock.lost_at:
                    continue
                self.lose()
                return
            except HeliographError:
                self.lose()
                return
            if self._channel is not None:
                self.clock.turn(SessionState.CONNECTED)
                self._pump()

    async def _connect_until(self, deadline: Callable[[], float]) -> None:
        """Connect and (re-)attach the session, trying again until the deadline.

        Raises:
            ConnectionLossError: the deadline passed.
            HeliographError: the server refused for good.
        """
        pause_ms, failure = RECONNECT_PAUSE_MS, "no time was left"
        while (remaining := deadline() - now()) > 0:
            try:
                attempt = max(self.clock.timeout * SILENCE_SHARE, ATTEMPT_SECONDS_MIN)
                async with asyncio.timeout(min(remaining, attempt)):
                    await self._connect_once()
                    return
            except TimeoutError:
                failure = "no answer"
            except (OSError, ConnectionLossError) as error:
                failure = str(error) or type(error).__name__
            self.drop()
            pause = random.uniform(0.5, 1) * pause_ms / 1000
            await asyncio.sleep(max(0.0, min(pause, deadline() - now())))
            pause_ms = min(pause_ms * 2, RECONNECT_PAUSE_MS_MAX)
        raise ConnectionLossError(f"no metadata server can be reached at {self._host}:{self._port}: {failure}")

    async def _connect_once(self) -> None:
        self._disconnected.clear()
        channel = Channel(self._on_frame, self._on_disconnected)
        await self._loop.create_connection(lambda: channel, self._host, self._port)
        self._channel = channel
        self._heartbeat.begin()
        timeout_ms = round(self.clock.timeout * 1000)
        arguments = (MAGIC, PROTOCOL_VERSION, timeout_ms, self.clock.session_id, self.password)
        self.clock.session_id, self.password, timeout_ms = await self._request(Op.HELLO, arguments)
        self.clock.timeout = timeout_ms / 1000

    async def _reset_watches(self) -> None:
        items = self.watchers.reset_items()
        for start in range(0, len(items), RESET_WATCHES_MAX):
            await self._request(Op.RESET_WATCHES, (items[start : start + RESET_WATCHES_MAX],))

    async def _request(self, op: Op, arguments: tuple[Any, ...]) -> Any:
        """A request of our own, ahead of every waiting call."""
        if self._channel is None:
            raise ConnectionLossError("the connection was lost")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._send(self._requests.new(op, arguments, future))
        return await future

    def _send(self, request: Request) -> None:
        if self._channel is None:
            request.fail(ConnectionLossError("the connection was lost; the call was not sent"))
            return
        self._requests.sent(request, request.number)
        self._channel.put(request.frame)

    def _pump(self) -> None:
        while self.is_attached and (request := self._requests.next_to_send()) is not None:
            self._send(request)

    def _on_frame(self, frame: list[Any]) -> None:
        self._heartbeat.heard()
        if frame[0] == 0:
            self._on_notice(frame)
            return
        if len(frame) != 3:
            raise ProtocolError("an answer has three parts")
        answered = self._requests.settle(*frame)
        if answered is None:
            return
        sent_at, error = answered
        if isinstance(error, SessionExpiredError):
            self.lose()
        elif not self.clock.is_lost:
            self.clock.confirm(sent_at)
            self._pump()

    def _on_notice(self, frame: list[Any]) -> None:
        if frame[1] == Notice.SESSION_ENDED:
            self.lose()
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
        if self.is_attached:
            self.clock.turn(SessionState.SUSPENDED)
        self._requests.fail_in_flight(
            ConnectionLossError("the connection to the metadata server was lost; the outcome of the call is unknown")
        )
        self._disconnected.set()

    def drop(self) -> None:
        """See Patient."""
        if self._channel is not None:
            self._channel.abort()
            self._on_disconnected(self._channel)

    def lose(self) -> None:
        """See Patient."""
        if self.clock.is_lost:
            return
        self._announce_lost()
        self.drop()
        if self._keeper is not None:
            self._keeper.cancel()

    def _announce_lost(self) -> None:
        self.clock.turn(SessionState.LOST)
        self.watchers.clear()
        self._requests.fail_waiting(self.clock.over)

    async def _stop(self) -> None:
        self.drop()
        tasks = [task for task in (self._keeper, self._ticker) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
