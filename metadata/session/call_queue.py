"""A session's calls over a connection: a queue of calls to be sent, and the sent calls that wait for answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import CALLS_WAITING_MAX


class Call:
    """A call of the store. ``future`` is None when no caller waits for the answer."""

    __slots__ = ("began_at", "future", "sent_at")

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future
        self.began_at = self.sent_at = now()

    @property
    def is_over(self) -> bool:
        return self.future is not None and self.future.done()

    def answer(self, result: Any) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(result)

    def fail(self, error: HeliographError) -> None:
        """Raise an error at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


C = TypeVar("C", bound=Call)


class CallQueue(Generic[C]):
    """All calls of one session. A call is sent at most once."""

    def __init__(self, in_flight_max: int) -> None:
        """
        Args:
            in_flight_max: the most calls that may be sent and not answered; further ones wait their turn.
        """
        self._in_flight_max = in_flight_max
        self.waiting: deque[C] = deque()  # to be sent, in this order
        self._in_flight: dict[Hashable, C] = {}

    @property
    def has_room(self) -> bool:
        return len(self._in_flight) < self._in_flight_max

    def enqueue(self, call: C) -> None:
        """Add a call, to be sent in its turn.

        Raises:
            ConnectionLossError: too many calls wait already; this call is never sent.
        """
        if len(self.waiting) >= CALLS_WAITING_MAX:  # I15
            raise ConnectionLossError(f"{CALLS_WAITING_MAX} metadata calls are waiting already", field="calls")
        self.waiting.append(call)

    def next_to_send(self) -> C | None:
        """Return the next call in order whose caller still waits, if there is one and the window has room."""
        while self.waiting and len(self._in_flight) < self._in_flight_max:
            call = self.waiting.popleft()
            if not call.is_over:
                return call
        return None

    def sent(self, call: C, key: Hashable) -> None:
        """Note that a call is sent; its answer will name ``key``."""
        assert key not in self._in_flight, "a call is sent once"
        call.sent_at = now()
        self._in_flight[key] = call

    def answered(self, key: Hashable) -> C | None:
        """Remove and return the call that an answer is for; None if no such call is known."""
        return self._in_flight.pop(key, None)

    def oldest_sent_at(self) -> float | None:
        """Return when the oldest unanswered call was sent, None if there is none."""
        return next((call.sent_at for call in self._in_flight.values()), None)

    def fail_in_flight(self, error: HeliographError) -> None:
        """Fail the calls that were sent: their answers will not come."""
        calls = list(self._in_flight.values())
        self._in_flight.clear()
        for call in calls:
            call.fail(error)

    def fail_waiting(self, error: HeliographError, began_before: float | None = None) -> None:
        """Fail the calls that were not sent; with ``began_before``, only the calls that began earlier."""
        while self.waiting and (began_before is None or self.waiting[0].began_at < began_before):
            self.waiting.popleft().fail(error)
