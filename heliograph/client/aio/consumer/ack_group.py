"""Acknowledgements: sent in groups, kept until the broker confirms them, and sent again after a reconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.base.errors import Advice, HeliographError, QuotaExceededError, RequestTimeoutError
from heliograph.client.aio.transport.connection import BrokerConnection
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import to_unsigned, words_of

GROUP_IDS_MAX = 1000  # message ids in one command # I15
GROUPS_IN_FLIGHT_MAX = 4  # commands without an answer; more acknowledgements join the next group meanwhile
GROUPS_WAITING_MAX = 1000  # groups queued behind those

_T = pb.BaseCommand


@dataclass(slots=True)
class AckGroup:
    """The acknowledgements of one command.

    Attributes:
        entries: For each (ledger, entry) the bits of the messages that stay unacknowledged; 0 acknowledges the entry.
        cumulative: The group holds one entry, up to which everything is acknowledged.
        waiters: Futures that resolve when the broker has made the group durable.
        deadline: Loop time at which the waiters fail.
    """

    deadline: float
    cumulative: bool = False
    entries: dict[tuple[int, int], int] = field(default_factory=dict)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def command(self, consumer_id: int, request_id: int, *, may_be_divided: bool) -> pb.BaseCommand:
        """Return the ACK command of the group.

        Without bits an entry that is divided at this broker would mean the part that this consumer was sent, which may
        be none: what it acknowledges may have come by another broker.
        """
        kind = pb.CommandAck.CUMULATIVE if self.cumulative else pb.CommandAck.INDIVIDUAL
        ack = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, request_id=request_id)
        for (ledger_id, entry_id), bits in self.entries.items():
            entry = ack.message_id.add(ledger_id=to_unsigned(ledger_id), entry_id=to_unsigned(entry_id))
            if bits:
                entry.ack_set.extend(words_of(bits))
            elif may_be_divided:
                entry.ack_set.append(0)
        return pb.BaseCommand(type=_T.ACK, ack=ack)

    def confirm(self) -> None:
        """Resolve the waiters: the broker has made the group durable."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: HeliographError) -> None:
        """Fail the waiters with ``error``."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # no warning if the caller is gone


class AckSender:
    """Collects the acknowledgements of one turn of the event loop into groups and sends them to the broker.

    Args:
        timeout_ms: How long a waiter waits, over all reconnects.
        retry_pause: Returns the seconds to wait after a refusal that may pass.
        may_be_divided: Whether brokers divide the messages of an entry among consumers.
    """

    def __init__(
        self, consumer_id: int, timeout_ms: int, retry_pause: Callable[[], float], *, may_be_divided: bool = False
    ) -> None:
        self._consumer_id = consumer_id
        self._may_be_divided = may_be_divided
        self._timeout = timeout_ms / 1000
        self._retry_pause = retry_pause
        self._loop = asyncio.get_running_loop()
        self._connection: BrokerConnection | None = None
        self._open: AckGroup | None = None
        self._waiting: deque[AckGroup] = deque()
        self._in_flight: dict[asyncio.Future[pb.CommandAckResponse], AckGroup] = {}
        self._failure: HeliographError | None = None
        self._scheduled: asyncio.Handle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def individual(self, entries: dict[tuple[int, int], int]) -> list[asyncio.Future[None]]:
        """Acknowledge entries or messages of them; durable when all returned futures, one per command, resolve."""
        if len(entries) <= GROUP_IDS_MAX:
            return [self._in_one_command(entries)]
        pairs = list(entries.items())
        shares = [dict(pairs[start : start + GROUP_IDS_MAX]) for start in range(0, len(pairs), GROUP_IDS_MAX)]
        return [self._in_one_command(share) for share in shares]  # I15

    def cumulative(self, position: tuple[int, int], bits: int) -> asyncio.Future[None]:
        """Acknowledge everything up to an entry, of which ``bits`` stay unacknowledged."""
        group = self._new_group(cumulative=True)
        self._open = None
        group.entries[position] = bits
        return self._wait_for(group)

    def attach(self, connection: BrokerConnection) -> None:
        """Send whatever is not confirmed over ``connection``, after the consumer subscribed on it."""
        self._connection = connection
        self._flush()

    def detach(self) -> None:
        """Put unconfirmed groups back into the queue, in order, after the connection or the subscription ended."""
        self._connection = None
        self._waiting.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()

    def supersede(self) -> None:
        """Drop unsent acknowledgements before a seek: they must not apply to the new position of the subscription."""
        assert not self._in_flight, "the sender is detached before the seek"
        for group in self._waiting:
            group.confirm()
        self._waiting.clear()
        self._open = None

    async def drain(self) -> None:
        """Wait until every acknowledgement is confirmed or failed."""
        groups = [*self._in_flight.values(), *self._waiting]
        waiters = [waiter for group in groups for waiter in group.waiters if not waiter.done()]
        if waiters:
            await asyncio.wait(waiters)

    def fail(self, error: HeliographError) -> None:
        """Fail every acknowledgement, pending and future, with ``error``."""
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
        for position, bits in entries.items():
            known[position] = known.get(position, bits) & bits
        return self._wait_for(group)

    def _new_group(self, *, cumulative: bool) -> AckGroup:
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) >= GROUPS_WAITING_MAX:  # I15
            raise QuotaExceededError(
                "the broker does not confirm acknowledgements as fast as they are made",
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
            self._send(group, connection)

    def _send(self, group: AckGroup, connection: BrokerConnection) -> None:
        answer = connection.request(
            lambda request_id: group.command(self._consumer_id, request_id, may_be_divided=self._may_be_divided)
        )
        self._in_flight[answer] = group
        answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: asyncio.Future[pb.CommandAckResponse]) -> None:
        group = self._in_flight.pop(answer, None)
        error = answer.exception() if not answer.cancelled() else None
        if group is None:
            return  # the sender was detached meanwhile
        if error is None:
            group.confirm()
            self._flush()
            return
        assert isinstance(error, HeliographError), "a connection fails requests with errors of the tree only"
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
