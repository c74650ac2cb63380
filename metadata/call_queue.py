"""A session's calls over a connection: those that wait to be sent, in order, and those that wait for their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError
from metadata.session_clock import now
from metadata.session_limits import CALLS_WAITING_MAX


class Call:
    """Something asked of the store. ``future`` is None when nobody waits."""

    __slots__ = ("began_at", "future", "sent_at")

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future
        self.began_at = self.sent_at = now()

    @property
    def is_over(self) -> bool:
        """Whether its caller was answered or cancelled."""
        return self.future is not None and self.future.done()

    def answer(self, result: Any) -> None:
        """Give the caller its result."""
        if self.future is not None and not self.future.done():
            self.future.set_result(result)

    def fail(self, error: HeliographError) -> None:
        """Raise an error at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


C = TypeVar("C", bound=Call)


class CallQueue(Generic[C]):
    """All calls of one session. A call is sent once at most."""

    def __init__(self, in_flight_max: int) -> None:
        """
        Args:
            in_flight_max: sent and not answered; more wait their turn.
        """
        self._in_flight_max = in_flight_max
        self._waiting: deque[C] = deque()
        self._in_flight: dict[Hashable, C] = {}

    @property
    def has_room(self) -> bool:
        """Whether another call may be sent."""
        return len(self._in_flight) < self._in_flight_max

    def enqueue(self, call: C) -> None:
        """Have it sent by a later ``next_to_send``.

        Raises:
            ConnectionLossError: too many wait already; it is never sent.
        """
        if len(self._waiting) >= CALLS_WAITING_MAX:  # I15
            raise ConnectionLossError(f"{CALLS_WAITING_MAX} metadata calls are waiting already", field="calls")
        self._waiting.append(call)

    def next_to_send(self) -> C | None:
        """The next call in order that somebody still waits for, if there is one and the window has room."""
        while self._waiting and self.has_room:
            call = self._waiting.popleft()
            if not call.is_over:
                return call
        return None

    def sent(self, call: C, key: Hashable) -> None:
        """The call is on its way; its answer will name ``key``."""
        call.sent_at = now()
        self._in_flight[key] = call

    def answered(self, key: Hashable) -> C | None:
        """The call that an answer is for; None when no such call is known."""
        return self._in_flight.pop(key, None)

    def oldest_sent_at(self) -> float | None:
        """When the oldest unanswered call was sent."""
        return next((call.sent_at for call in self._in_flight.values()), None)

    def fail_in_flight(self, error: HeliographError) -> None:
        """Their answers will never come."""
        calls = list(self._in_flight.values())
        self._in_flight.clear()
        for call in calls:
            call.fail(error)

    def fail_waiting(self, error: HeliographError, began_before: float | None = None) -> None:
        """They are never sent; with ``began_before`` only those that began earlier."""
        while self._waiting and (began_before is None or self._waiting[0].began_at < began_before):
            self._waiting.popleft().fail(error)
