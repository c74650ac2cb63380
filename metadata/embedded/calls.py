"""The client's calls: those that wait to be sent, in order, and those that wait for their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.errors import HeliographError
from metadata.embedded.limits import REQUESTS_IN_FLIGHT_MAX, REQUESTS_WAITING_MAX
from metadata.embedded.protocol import OK, Op, decode_error, encode_frame
from metadata.errors import ConnectionLossError

OnResult = Callable[[Any], None]


class Call:
    """One request. ``future`` is None when nobody waits; ``on_result`` runs before the future's waiter is woken."""

    __slots__ = ("began_at", "frame", "future", "on_result", "request_id", "sent_at")

    def __init__(
        self,
        request_id: int,
        op: Op,
        arguments: Sequence[Any],
        future: asyncio.Future[Any] | None,
        on_result: OnResult | None,
        now: float,
    ) -> None:
        self.request_id = request_id
        self.frame = encode_frame([request_id, op, *arguments])
        self.future = future
        self.on_result = on_result
        self.began_at = now
        self.sent_at = now

    @property
    def abandoned(self) -> bool:
        """Whether its caller was cancelled."""
        return self.future is not None and self.future.done()

    def fail(self, error: HeliographError) -> None:
        """Raise an error at the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class CallQueue:
    """All calls of one session. A call is sent once at most."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: deque[Call] = deque()
        self._in_flight: dict[int, Call] = {}

    def new(
        self,
        op: Op,
        arguments: Sequence[Any],
        now: float,
        future: asyncio.Future[Any] | None = None,
        on_result: OnResult | None = None,
    ) -> Call:
        """A call that is neither waiting nor sent yet.

        Raises:
            ValueTooLargeError: the request is above the frame limit.
        """
        return Call(next(self._numbers), op, arguments, future, on_result, now)

    def enqueue(self, call: Call) -> None:
        """Have it sent by a later ``next_to_send``.

        Raises:
            ConnectionLossError: too many wait already; it is never sent.
        """
        if len(self._waiting) >= REQUESTS_WAITING_MAX:  # I15
            raise ConnectionLossError(f"{REQUESTS_WAITING_MAX} metadata calls are waiting already", field="calls")
        self._waiting.append(call)

    def next_to_send(self) -> Call | None:
        """The next call in order, if there is one and the window has room."""
        while self._waiting and len(self._in_flight) < REQUESTS_IN_FLIGHT_MAX:
            call = self._waiting.popleft()
            if not call.abandoned:
                return call
        return None

    def sent(self, call: Call, now: float) -> None:
        """The call is on its way."""
        call.sent_at = now
        self._in_flight[call.request_id] = call

    def oldest_sent_at(self) -> float | None:
        """When the oldest unanswered call was sent."""
        return next((call.sent_at for call in self._in_flight.values()), None)

    def answer(self, request_id: int, code: int, result: Any) -> tuple[float, HeliographError | None] | None:
        """Take an answer: when its call was sent, and the error it carries. None when no such call is known."""
        call = self._in_flight.pop(request_id, None)
        if call is None:
            return None
        if code != OK:
            error = decode_error(code, result)
            call.fail(error)
            return call.sent_at, error
        if not call.abandoned:
            if call.on_result is not None:
                call.on_result(result)
            if call.future is not None:
                call.future.set_result(result)
        return call.sent_at, None

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
