"""A load with a bounded number of requests in flight: each answer allows the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from heliograph.cli.messages.measure import MeasuredRun

ANSWER_SECONDS_MAX = 30.0  # for the remaining answers after the last request


class Pump:
    """A sender of numbered requests, never more than ``window`` in flight.

    With a window of 1 it is a closed loop: the latencies are those of one caller that waits.
    """

    def __init__(self, send: Callable[[int], None], window: int, request_bytes: int = 0, first: int = 0) -> None:
        """Args:
        send: starts request number n; ``answered(n)`` or ``failed`` must be called for it later, not during the call.
        request_bytes: the payload of one request, counted in the result.
        first: the number of the first request.
        """
        self.run_result = MeasuredRun()
        self.next = first
        self._send = send
        self._window = window
        self._request_bytes = request_bytes
        self._sent_at: dict[int, float] = {}
        self._deadline = 0.0
        self._last = 1 << 62
        self._ended: asyncio.Future[None] | None = None

    async def run(self, seconds: float, count: int = 1 << 62) -> MeasuredRun:
        """Send for ``seconds``, at most ``count`` requests, and wait for all answers.

        Raises:
            TimeoutError: the answers did not come.
            BaseException: the error that ``failed`` got.
        """
        self._ended = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self._deadline = begun + seconds
        self._last = self.next + count
        for _ in range(min(self._window, count)):
            self._send_next()
        await asyncio.wait_for(self._ended, seconds + ANSWER_SECONDS_MAX)
        self.run_result.seconds += time.perf_counter() - begun
        return self.run_result

    def answered(self, number: int) -> None:
        """Note that a request was answered as expected."""
        now = time.perf_counter()
        run = self.run_result
        run.latencies.add((now - self._sent_at.pop(number)) * 1000)
        run.messages += 1
        run.bytes += self._request_bytes
        if now < self._deadline and self.next < self._last:
            self._send_next()
        elif not self._sent_at:
            self._end(None)

    def failed(self, error: BaseException) -> None:
        """Note that a request failed: the measurement is void."""
        self._end(error)

    def _send_next(self) -> None:
        number = self.next
        self.next = number + 1
        self._sent_at[number] = time.perf_counter()
        self._send(number)

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
