"""When messages of one partition are requested again: some time after a negative acknowledgement, or without any."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

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
        # Deadlines, the oldest first, by a delivery and how far it was handed out at the time.
        self._unacknowledged: dict[tuple[ReceivedEntry, int], float] = {}
        self._handed_out: dict[ReceivedEntry, list[int]] = {}  # the same by delivery
        self._kept: dict[_Position, list[ReceivedEntry]] = {}  # deliveries of which only a part was given back
        self._ack_timer: asyncio.TimerHandle | None = None
        self._at: WeakValueDictionary[_Position, ReceivedEntry] = WeakValueDictionary()  # while callers have them

    def note(self, delivery: ReceivedEntry) -> None:
        """Note that callers have messages of a delivery, of which they may name the ids alone."""
        self._at[delivery.position] = delivery

    def acknowledged_by_id(self, position: _Position, batch_index: int) -> ReceivedEntry | None:
        """Note which message of a delivery that was noted is acknowledged, and return the delivery.

        Args:
            batch_index: its place in its batch; below 0: all of the entry.
        """
        if (found := self._at.get(position)) is not None:
            found.unacknowledged &= ~(1 << batch_index) if batch_index >= 0 else 0
        return found

    # -- negative acknowledgements

    def nack(
        self, position: _Position, bit: int = 0, redelivery_count: int = 0, delivery: ReceivedEntry | None = None
    ) -> None:
        """Request a message again after its pause, which grows with its deliveries; an earlier deadline stays.

        Args:
            bit: Its bit in its batch; 0 for all of the entry.
            delivery: The delivery that had it, if that is known.
        """
        if delivery is not None:
            self._keep_rest(delivery)
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
        """Expect an acknowledgement of what callers have got of a delivery by now within ``ack_timeout_ms``."""
        if (delivery, delivery.reached) in self._unacknowledged:
            return
        deadline = self._loop.time() + self._options.ack_timeout_ms / 1000
        self._unacknowledged[delivery, delivery.reached] = deadline
        self._handed_out.setdefault(delivery, []).append(delivery.reached)
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)
        if len(self._unacknowledged) > ENTRIES_MAX:  # I15
            oldest = next(iter(self._unacknowledged))
            if found := self._give_up([oldest]):
                self._redeliver(found)

    def acknowledged(self, delivery: ReceivedEntry) -> None:
        """Expect nothing more of a delivery."""
        for reached in self._handed_out.pop(delivery, ()):
            del self._unacknowledged[delivery, reached]
        if self._kept:
            self._held(delivery.position)

    def acknowledged_up_to(self, last: _Position) -> None:
        """Expect nothing more of an entry and those before it."""
        for delivery in [delivery for delivery in self._handed_out if delivery.position <= last]:
            self.acknowledged(delivery)

    def _on_unacknowledged(self) -> None:
        self._ack_timer = None
        now = self._loop.time()
        late: list[tuple[ReceivedEntry, int]] = []
        for handed_out, deadline in self._unacknowledged.items():
            if deadline > now:
                self._ack_timer = self._loop.call_at(deadline, self._on_unacknowledged)
                break
            late.append(handed_out)
        if late and (found := self._give_up(late)):
            self._on_timeout(sorted(found))
            self._redeliver(found)

    def _give_up(self, late: Sequence[tuple[ReceivedEntry, int]]) -> dict[_Position, int]:
        """Forget every delivery that was handed out. Return the messages to request again, as ``redeliver`` takes it.

        A shared subscription takes single messages back. Its messages that were handed out later, or wait in the
        inbox, are not late.  # I22
        """
        found: dict[_Position, int] = {}
        for delivery, reached in late:
            if self._unacknowledged.pop((delivery, reached), None) is None:
                continue  # abandoned with what was handed out earlier
            self._handed_out[delivery].remove(reached)
            if not self._handed_out[delivery]:
                del self._handed_out[delivery]  # its caller may never acknowledge it
            bits = delivery.unacknowledged & ~delivery.returned  # what was refused comes after its pause
            if self._options.is_shared:
                bits &= (1 << reached) - 1
            else:
                self.acknowledged(delivery)
                delivery.abandon()
            if not bits:
                continue
            delivery.returned |= bits
            self._keep_rest(delivery)
            found.update(dict.fromkeys(delivery.earlier_chunks, 0))
            found[delivery.position] = found.get(delivery.position, 0) | (bits if delivery.count > 1 else 0)
        return found

    # -- what is not handed out twice

    def leave_out_held(self, delivery: ReceivedEntry) -> None:
        """Leave out of a new delivery what callers, or the inbox, still have of its entry.

        A broker that takes no single messages back, such as one of an earlier release, sends these again with the
        refused ones.
        """
        if delivery.position in self._kept and (held := self._held(delivery.position)):
            delivery.leave_out(held)
            self._kept[delivery.position].append(delivery)

    def _held(self, position: _Position) -> int:
        """Return the messages, a bit each, that deliveries of an entry still have. Forget deliveries that have none."""
        kept = [each for each in self._kept.pop(position, ()) if each.unacknowledged & ~each.returned]
        if kept:
            self._kept[position] = kept
        held = 0
        for delivery in kept:
            held |= delivery.unacknowledged & ~delivery.returned
        return held

    def _keep_rest(self, delivery: ReceivedEntry) -> None:
        """Note that a delivery has messages left while others of it are given back."""
        if self._options.is_shared and delivery.unacknowledged & ~delivery.returned:
            kept = self._kept.setdefault(delivery.position, [])
            if delivery not in kept:
                kept.append(delivery)

    def clear(self) -> None:
        """Forget everything: the broker delivers all of it again by itself, or nobody is interested any more."""
        self._nacked.clear()
        self._due.clear()
        self._unacknowledged.clear()
        self._handed_out.clear()
        self._kept.clear()
        self._at.clear()
        for timer in (self._nack_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._nack_timer = self._ack_timer = None
