"""Acknowledgements: grouped into few commands, kept until the broker confirmed them, sent again after a reconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.aio.connection import Connection
from heliograph.aio.delivery import words_of
from heliograph.errors import Advice, HeliographError, QuotaExceededError, RequestTimeoutError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import to_unsigned

GROUP_IDS_MAX = 1000  # message ids in one command # I15
GROUPS_IN_FLIGHT_MAX = 4  # commands without an answer; more acknowledgements join the next group meanwhile
GROUPS_WAITING_MAX = 1000  # groups queued behind those

_T = pb.BaseCommand


@dataclass(slots=True)
class AckGroup:
    """Acknowledgements of one command.

    Attributes:
        entries: (ledger, entry) -> bits of the messages that stay unacknowledged; 0 acknowledges the entry.
        cumulative: the group holds one entry, up to which everything is acknowledged.
        waiters: resolved once the broker made the group durable.
        deadline: when the waiters fail, in loop time.
    """

    deadline: float
    cumulative: bool = False
    entries: dict[tuple[int, int], int] = field(default_factory=dict)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def command(self, consumer_id: int, request_id: int) -> pb.BaseCommand:
        """The group as it travels."""
        kind = pb.CommandAck.CUMULATIVE if self.cumulative else pb.CommandAck.INDIVIDUAL
        ack = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, request_id=request_id)
        for (ledger_id, entry_id), bits in self.entries.items():
            place = ack.message_id.add(ledger_id=to_unsigned(ledger_id), entry_id=to_unsigned(entry_id))
            if bits:
                place.ack_set.extend(words_of(bits))
        return pb.BaseCommand(type=_T.ACK, ack=ack)

    def confirm(self) -> None:
        """The broker has it."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: HeliographError) -> None:
        """It is given up."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # a caller that went away is no reason for a warning


class AckSender:
    """Collects the acknowledgements of one turn of the loop into a group and carries groups to the broker.

    Args:
        timeout_ms: how long a waiter waits, over all reconnects.
        retry_pause: seconds to wait after a passing refusal.
    """

    def __init__(self, consumer_id: int, timeout_ms: int, retry_pause: Callable[[], float]) -> None:
        self._consumer_id = consumer_id
        self._timeout = timeout_ms / 1000
        self._retry_pause = retry_pause
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._open: AckGroup | None = None
        self._waiting: deque[AckGroup] = deque()
        self._in_flight: dict[asyncio.Future[pb.CommandAckResponse], AckGroup] = {}
        self._failure: HeliographError | None = None
        self._scheduled: asyncio.Handle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def individual(self, entries: dict[tuple[int, int], int]) -> list[asyncio.Future[None]]:
        """Acknowledges entries, or messages of them; it is durable when all futures, one for each command, resolve."""
        if len(entries) <= GROUP_IDS_MAX:
            return [self._in_one_command(entries)]
        places = list(entries.items())
        shares = [dict(places[start : start + GROUP_IDS_MAX]) for start in range(0, len(places), GROUP_IDS_MAX)]
        return [self._in_one_command(share) for share in shares]  # I15

    def cumulative(self, place: tuple[int, int], bits: int) -> asyncio.Future[None]:
        """Acknowledges everything up to an entry, of which ``bits`` stay unacknowledged."""
        group = self._new_group(cumulative=True)
        self._open = None
        group.entries[place] = bits
        return self._wait_for(group)

    def attach(self, connection: Connection) -> None:
        """The consumer is subscribed again: whatever is not confirmed is sent over ``connection``."""
        self._connection = connection
        self._flush()

    def detach(self) -> None:
        """The connection or the subscription ended: unconfirmed groups go back to the queue, in their order."""
        self._connection = None
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    def supersede(self) -> None:
        """The subscription was moved by a seek: what was not sent by then must not be applied to its new place."""
        assert not self._in_flight, "detached before the seek"
        for group in self._waiting:
            group.confirm()
        self._waiting.clear()
        self._open = None

    async def drain(self) -> None:
        """Waits until everything is confirmed or failed."""
        groups = [*self._in_flight.values(), *self._waiting]
        waiters = [waiter for group in groups for waiter in group.waiters if not waiter.done()]
        if waiters:
            await asyncio.wait(waiters)

    def fail(self, error: HeliographError) -> None:
        """Gives everything up, now and from now on."""
        self._failure = error
        for handle in (self._scheduled, self._expiry):
            if handle is not None:
                handle.cancel()
        groups = [*self._in_flight.values(), *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self._open = None
        for group in groups:
            group.fail(error)

    def _in_one_command(self, entries: dict[tuple[int, int], int]) -> asyncio.Future[None]:
        group = self._open
        if group is None or len(group.entries) + len(entries) > GROUP_IDS_MAX:
            group = self._open = self._new_group(cumulative=False)
        known = group.entries
        for place, bits in entries.items():
            known[place] = known.get(place, bits) & bits
        return self._wait_for(group)

    def _new_group(self, *, cumulative: bool) -> AckGroup:
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) >= GROUPS_WAITING_MAX:  # I15
            raise QuotaExceededError(
                "the broker does not take acknowledgements as fast as they come",
                limit=f"{GROUPS_WAITING_MAX} groups of {GROUP_IDS_MAX}",
            )
        group = AckGroup(self._loop.time() + self._timeout, cumulative)
        self._waiting.append(group)
        if self._expiry is None:
            self._expiry = self._loop.call_at(group.deadline, self._expire)
        return group

    def _wait_for(self, group: AckGroup) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = self._loop.create_future()
        group.waiters.append(waiter)
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._flush)
        return waiter

    def _flush(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        connection = self._connection
        while connection is not None and self._waiting and len(self._in_flight) < GROUPS_IN_FLIGHT_MAX:
            group = self._waiting.popleft()
            if group is self._open:
                self._open = None
            self._carry(group, connection)

    def _carry(self, group: AckGroup, connection: Connection) -> None:
        answer = connection.request(lambda request_id: group.command(self._consumer_id, request_id))
        self._in_flight[answer] = group
        answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: asyncio.Future[pb.CommandAckResponse]) -> None:
        group = self._in_flight.pop(answer, None)
        error = answer.exception() if not answer.cancelled() else None
        if group is None:
            return  # detached meanwhile
        if error is None:
            group.confirm()
            self._flush()
            return
        assert isinstance(error, HeliographError), "a connection fails requests with errors of our tree only"
        if error.advice is Advice.STOP:
            group.fail(error)
            self._flush()
            return
        self._waiting.appendleft(group)
        if self._scheduled is None:
            self._scheduled = self._loop.call_later(self._retry_pause(), self._flush)

    def _expire(self) -> None:
        self._expiry = None
        now = self._loop.time()
        for group in [group for group in self._waiting if group.deadline <= now]:
            self._waiting.remove(group)
            if group is self._open:
                self._open = None
            group.fail(RequestTimeoutError("an acknowledgement was not confirmed in time; its outcome is unknown"))
        groups = [*self._in_flight.values(), *self._waiting]
        if groups:
            next_deadline = max(min(group.deadline for group in groups), now + 0.1)
            self._expiry = self._loop.call_at(next_deadline, self._expire)
