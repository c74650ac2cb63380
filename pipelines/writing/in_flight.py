"""Messages that a task has sent and that are not confirmed, with a bound in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from heliograph.base.errors import HeliographError

IN_FLIGHT_BYTES_MAX = 16 << 20  # of one task, over all topics (I15)
ROW_BYTES = 64  # what a row counts besides its cells


class InFlight:
    """Rows on their way to the brokers. A caller that adds some waits while there are too many.

    Args:
        bytes_max: the bound; a single larger piece is sent alone.
    """

    def __init__(self, bytes_max: int = IN_FLIGHT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0  # 0 <= bytes <= bytes_max, but for a single larger piece
        self._waiting: deque[tuple[Future[Any], int, Callable[[HeliographError], HeliographError]]] = deque()

    def make_room(self, size: int) -> None:
        """Wait until ``size`` bytes more may be sent.

        Raises:
            HeliographError: an earlier send failed.
        """
        while self._waiting and (self._bytes + size > self._bytes_max or self._waiting[0][0].done()):
            self._settle()

    def add(self, sent: Future[Any], size: int, named: Callable[[HeliographError], HeliographError]) -> None:
        """Note that ``size`` bytes were sent.

        Args:
            named: turns the error of a send into the caller's.
        """
        self._waiting.append((sent, size, named))
        self._bytes += size

    def wait(self) -> None:
        """Wait until everything is durable; raises as ``make_room``."""
        while self._waiting:
            self._settle()

    def _settle(self) -> None:
        sent, size, named = self._waiting.popleft()
        self._bytes -= size
        try:
            sent.result()
        except HeliographError as error:
            told = named(error)
            if told is error:
                raise
            raise told from error
