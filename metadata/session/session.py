"""The life of one client session, for every backend that keeps it by the session's own clock."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, TypeVar

from heliograph.base.interval import until_tick
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.call_queue import Call, CallQueue
from heliograph.metadata.session.clock import SessionClock, now
from heliograph.metadata.session.limits import (
    ANSWER_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    PINGS_PER_TIMEOUT,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)
from heliograph.metadata.store import SessionState

C = TypeVar("C", bound=Call)


class Pinging(Protocol):
    """The session that a heartbeat keeps."""

    @property
    def is_attached(self) -> bool:
        """Whether there is a connection on which the store knows the session."""

    def ping(self) -> None:
        """Ask the store for a sign of life."""

    def drop(self) -> None:
        """Break a connection that has been silent for too long."""


class Heartbeat:
    """The heartbeat of one session."""

    def __init__(self, session: Pinging, clock: SessionClock, calls: CallQueue[Any]) -> None:
        self._session = session
        self._clock = clock
        self._calls = calls
        self._heard_at = 0.0
        self._pinged_at = 0.0
        # When the loop ran again, and for how many seconds it had not; of the last ANSWER_SECONDS_MAX in which it ran
        self._held_up: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Note that there is a new connection."""
        self._heard_at = self._pinged_at = now()

    def heard(self) -> None:
        """Note that something arrived."""
        self._heard_at = now()

    async def run(self) -> None:
        """Check the clock regularly. Return when the session is LOST."""
        tick = min(TICK_SECONDS_MAX, self._clock.timeout / PINGS_PER_TIMEOUT / 2)
        last = now()
        while not self._clock.is_lost:
            await asyncio.sleep(until_tick(tick))
            moment = now()
            held_up = moment - last - tick
            last = moment
            self._look(moment, held_up if held_up > tick else 0.0)

    def _look(self, moment: float, held_up: float = 0.0) -> None:
        """Fail the calls, and drop the connection, that have waited for too long.

        Args:
            held_up: seconds since the last look in which the loop did not run. Answers may be waiting to be read, so
                these seconds do not count as silence.
        """
        if held_up:
            self._heard_at = moment
            self._held_up.append((moment, held_up))
        late = self._since(moment, ANSWER_SECONDS_MAX)
        self._held_up = [each for each in self._held_up if each[0] > late]
        self._calls.fail_waiting(
            ConnectionLossError("no connection to the metadata store; the call was not sent"),
            began_before=self._since(moment, CALL_WAIT_SECONDS_MAX),
        )
        if not self._session.is_attached:
            return
        timeout, sent_at = self._clock.timeout, self._calls.oldest_sent_at()
        if sent_at is not None:
            silent = moment - max(self._heard_at, sent_at)
            if silent > timeout * SILENCE_SHARE or sent_at < late:
                self._session.drop()
                return
        if moment - self._pinged_at >= timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = moment
            self._session.ping()

    def _since(self, moment: float, seconds: float) -> float:
        """Return the moment since which the loop has run for so many seconds."""
        for ended, held_up in reversed(self._held_up):
            if moment - seconds >= ended:
                break
            seconds += held_up
        return moment - seconds


class MetadataSession(ABC):
    """A session that ends once: by ``lose`` or by ``close``. Every method is called on the loop that made it."""

    def __init__(self, timeout_ms: int) -> None:
        """
        Args:
            timeout_ms: the requested session timeout; the clock is told the granted one.
        """
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self.clock = SessionClock(timeout_ms / 1000)

    def lose(self) -> None:
        """End a session that the store has ended. Idempotent."""
        if self.clock.is_lost:
            return
        self._announce_lost()
        self._cancel_tasks()
        self.drop()

    async def close(self) -> None:
        """End the session. If the store cannot be reached now, the session expires there. Idempotent."""
        state = self.clock.state
        if not self.clock.is_lost:
            self._announce_lost()  # the owner is told LOST before the store can remove the ephemerals (I13)
            self._cancel_tasks()
            if state is not SessionState.LOST:
                await self._end_at_store(state)
        await self._release()

    async def detach(self) -> None:
        """Give the session up without ending it at the store. Idempotent."""
        if not self.clock.is_lost:
            self._announce_lost()
            self._cancel_tasks()
        await self._release()

    async def _release(self) -> None:
        self.drop()
        self._cancel_tasks()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start_tasks(self, *coroutines: Coroutine[Any, Any, None]) -> None:
        assert not self._tasks, "the tasks of a session start once"
        self._tasks = [self._loop.create_task(coroutine) for coroutine in coroutines]

    def _cancel_tasks(self) -> None:
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _announce_lost(self) -> None:
        """Tell the listeners LOST, then end what relies on the session."""
        assert not self.clock.is_lost, "a session is lost once"
        self.clock.turn(SessionState.LOST)
        self._on_lost()

    @abstractmethod
    def _on_lost(self) -> None:
        """Remove the watches and fail the calls that wait."""

    @abstractmethod
    async def _end_at_store(self, state: SessionState) -> None:
        """Ask the store to end the session, if it can be reached now; ``state`` is the state before the end."""

    @abstractmethod
    def drop(self) -> None:
        """Break the connection. Idempotent."""


class QueuedSession(MetadataSession, Pinging, Generic[C]):
    """A session whose calls share one connection, in order, and which is kept alive by their answers."""

    def __init__(self, timeout_ms: int, calls: CallQueue[C]) -> None:
        super().__init__(timeout_ms)
        self._calls = calls
        self._heartbeat = Heartbeat(self, self.clock, calls)

    @abstractmethod
    def _send(self, call: C) -> None:
        """Send a call."""

    def _ask(self, call: C) -> asyncio.Future[Any]:
        """Send a call in its turn, and return the future of its answer.

        Raises:
            ConnectionLossError: there was no connection to send it on, or no answer came.
            SessionExpiredError: the session is over; the call was not sent or did nothing.
            HeliographError: as the store answered.
        """
        assert call.future is not None, "a caller waits for the answer"
        self._calls.enqueue(call)
        self._pump()
        return call.future

    def _pump(self) -> None:
        """Send the calls whose turn it is, while CONNECTED."""
        while self._calls.waiting and self.clock.state is SessionState.CONNECTED:
            if (call := self._calls.next_to_send()) is None:
                return  # the window is full
            self._send(call)
