"""When the entries of one partition are requested again: some time after a negative acknowledgement, or without any."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence

from heliograph.client.options import ConsumerOptions

NACKS_TOGETHER_SECONDS = 0.01  # entries that are due so close to each other are requested in one command
ENTRIES_MAX = 100_000  # handed out and not acknowledged, of one partition; the oldest is requested again # I15

_Position = tuple[int, int]


class RedeliverySchedule:
    """The deadlines of entries that were handed out.

    Args:
        redeliver: Called with the entries that are due, sorted.
        on_timeout: Called before with those that were not acknowledged in time.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        redeliver: Callable[[Sequence[_Position]], None],
        on_timeout: Callable[[Sequence[_Position]], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._loop = loop
        self._redeliver = redeliver
        self._on_timeout = on_timeout
        self._nacked: dict[_Position, float] = {}  # loop time at which an entry is requested again
        self._due: list[tuple[float, _Position]] = []  # a heap of the same, with entries that are no longer nacked
        self._nack_timer: asyncio.TimerHandle | None = None
        self._unacknowledged: dict[_Position, tuple[float, Sequence[_Position]]] = {}  # by deadline, the oldest first
        self._ack_timer: asyncio.TimerHandle | None = None

    # -- negative acknowledgements

    def nack(self, position: _Position, redelivery_count: int = 0) -> None:
        """Request an entry again after its pause, which grows with its deliveries; an earlier deadline stays."""
        self.acknowledged(position)
        deadline = self._loop.time() + self._options.nack_pause_ms(redelivery_count) / 1000
        if deadline < self._nacked.get(position, float("inf")):
            self._nacked[position] = deadline
            heapq.heappush(self._due, (deadline, position))
            self._await_nacked()

    def _await_nacked(self) -> None:
        if self._nack_timer is not None:
            if self._nack_timer.when() <= self._due[0][0]:
                return
            self._nack_timer.cancel()
        self._nack_timer = self._loop.call_at(self._due[0][0], self._on_nacked)

    def _on_nacked(self) -> None:
        self._nack_timer = None
        until = self._loop.time() + NACKS_TOGETHER_SECONDS
        found = []
        while self._due and self._due[0][0] <= until:
            deadline, position = heapq.heappop(self._due)
            if self._nacked.get(position) == deadline:
                del self._nacked[position]
                found.append(position)
        if self._due:
            self._await_nacked()
        if found:
            self._redeliver(sorted(found))

    # -- acknowledgements in time

    def handed_out(self, position: _Position, earlier_chunks: Iterable[_Position]) -> None:
        """Expect an acknowledgement of an entry within ``ack_timeout_ms``, if that is set."""
        if not self._options.ack_timeout_ms:
            return
        deadline = self._loop.time() + self._options.ack_timeout_ms / 1000
        self._unacknowledged.pop(position, None)
        self._unacknowledged[position] = deadline, (*earlier_chunks, position)
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)
        if len(self._unacknowledged) > ENTRIES_MAX:  # I15
            self._give_up(next(iter(self._unacknowledged)))

    def acknowledged(self, position: _Position) -> None:
        """Expect nothing more of an entry."""
        self._unacknowledged.pop(position, None)

    def acknowledged_up_to(self, last: _Position) -> None:
        """Expect nothing more of an entry and those before it."""
        for position in [position for position in self._unacknowledged if position <= last]:
            del self._unacknowledged[position]

    def _on_unacknowledged(self) -> None:
        self._ack_timer = None
        now = self._loop.time()
        late: list[_Position] = []
        for position, (deadline, _) in list(self._unacknowledged.items()):
            if deadline > now:
                self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)
                break
            late += self._unacknowledged.pop(position)[1]
        if late:
            self._on_timeout(sorted(late))
            self._redeliver(sorted(late))

    def _give_up(self, position: _Position) -> None:
        self._redeliver(sorted(self._unacknowledged.pop(position)[1]))

    def clear(self) -> None:
        """Forget everything: the broker delivers all of it again by itself, or nobody is interested any more."""
        self._nacked.clear()
        self._due.clear()
        self._unacknowledged.clear()
        for timer in (self._nack_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._nack_timer = self._ack_timer = None
