"""When messages of one partition are requested again: some time after a negative acknowledgement, or without any."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence

from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.options import ConsumerOptions

NACKS_TOGETHER_SECONDS = 0.01  # messages that are due so close to each other are requested in one command
ENTRIES_MAX = 100_000  # handed out and not acknowledged, of one partition; the oldest is requested again # I15

_Position = tuple[int, int]
_Messages = tuple[_Position, int]  # the bit of one message of an entry, 0 for all of the entry


class RedeliverySchedule:
    """The deadlines of messages that were handed out.

    Args:
        redeliver: Called with the entries that are due, and the bits of their messages; 0 for all.
        on_timeout: Called before with the entries that were not acknowledged in time, sorted.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        redeliver: Callable[[Mapping[_Position, int]], None],
        on_timeout: Callable[[Sequence[_Position]], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._loop = loop
        self._redeliver = redeliver
        self._on_timeout = on_timeout
        self._nacked: dict[_Messages, float] = {}  # loop time at which a message is requested again
        self._due: list[tuple[float, _Messages]] = []  # a heap of the same, with some that have an earlier deadline
        self._nack_timer: asyncio.TimerHandle | None = None
        self._unacknowledged: dict[ReceivedEntry, float] = {}  # deadlines, the oldest first
        self._ack_timer: asyncio.TimerHandle | None = None

    # -- negative acknowledgements

    def nack(self, position: _Position, bit: int = 0, redelivery_count: int = 0) -> None:
        """Request a message again after its pause, which grows with its deliveries; an earlier deadline stays.

        Args:
            bit: Its bit in its batch; 0 for all of the entry.
        """
        deadline = self._loop.time() + self._options.nack_pause_ms(redelivery_count) / 1000
        message = (position, bit)
        if deadline < self._nacked.get(message, float("inf")):
            self._nacked[message] = deadline
            heapq.heappush(self._due, (deadline, message))
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
        found: dict[_Position, int] = {}
        while self._due and self._due[0][0] <= until:
            deadline, message = heapq.heappop(self._due)
            if self._nacked.get(message) == deadline:
                del self._nacked[message]
                position, bit = message
                found[position] = found.get(position, bit) | bit if bit and found.get(position, bit) else 0
        if self._due:
            self._await_nacked()
        if found:
            self._redeliver(found)

    # -- acknowledgements in time

    def handed_out(self, delivery: ReceivedEntry) -> None:
        """Expect an acknowledgement of what was delivered within ``ack_timeout_ms``, if that is set."""
        if not self._options.ack_timeout_ms:
            return
        self._expect(delivery)
        if len(self._unacknowledged) > ENTRIES_MAX:  # I15
            oldest = next(iter(self._unacknowledged))
            if found := self._give_up([oldest]):
                self._redeliver(found)

    def _expect(self, delivery: ReceivedEntry) -> None:
        deadline = self._unacknowledged[delivery] = self._loop.time() + self._options.ack_timeout_ms / 1000
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)

    def acknowledged(self, delivery: ReceivedEntry) -> None:
        """Expect nothing more of a delivery."""
        self._unacknowledged.pop(delivery, None)

    def acknowledged_up_to(self, last: _Position) -> None:
        """Expect nothing more of an entry and those before it."""
        for delivery in [delivery for delivery in self._unacknowledged if delivery.position <= last]:
            del self._unacknowledged[delivery]

    def _on_unacknowledged(self) -> None:
        self._ack_timer = None
        now = self._loop.time()
        late: list[ReceivedEntry] = []
        for delivery, deadline in self._unacknowledged.items():
            if deadline > now:
                self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)
                break
            late.append(delivery)
        if late and (found := self._give_up(late)):
            self._on_timeout(sorted(found))
            self._redeliver(found)

    def _give_up(self, deliveries: Sequence[ReceivedEntry]) -> dict[_Position, int]:
        """Expect nothing more of deliveries. Return what is to be requested again, as ``redeliver`` takes it.

        A Shared subscription takes single messages back. What waits in the inbox there is not late, and has its time
        once it is handed out.  # I22
        """
        found: dict[_Position, int] = {}
        for delivery in deliveries:
            del self._unacknowledged[delivery]
            bits = delivery.unacknowledged & ~delivery.returned  # what was refused comes after its pause
            if self._options.type == "shared" and (waiting := bits >> delivery.reached << delivery.reached):
                bits ^= waiting
                self._expect(delivery)
                if not bits:
                    continue
            else:
                delivery.abandon()
            delivery.returned |= bits
            found.update(dict.fromkeys(delivery.earlier_chunks, 0))
            found[delivery.position] = found.get(delivery.position, 0) | (bits if delivery.count > 1 else 0)
        return found

    def clear(self) -> None:
        """Forget everything: the broker delivers all of it again by itself, or nobody is interested any more."""
        self._nacked.clear()
        self._due.clear()
        self._unacknowledged.clear()
        for timer in (self._nack_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._nack_timer = self._ack_timer = None
