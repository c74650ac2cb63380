"""The queue of received messages of all partitions of a consumer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from heliograph.base.errors import HeliographError, TopicTerminatedError
from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.aio.consumer.message import Message

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.partition import PartitionConsumer

ASK_ALL_SECONDS = 0.005  # that a caller waits for the partition whose turn it is: a broker answers sooner if it can


class Inbox:
    """A queue of deliveries that hands out single messages.

    The permits that its consumers grant bound it: a broker sends no more than was requested. # I15
    Deliveries of an earlier epoch are never handed out; the broker sends them again.

    Attributes:
        failure: The error that every receive raises once the inbox is empty.
        sources: Number of topics and partitions that deliver into this inbox.
    """

    def __init__(self, sources: int) -> None:
        self.failure: HeliographError | None = None
        self.sources = sources
        self._ended: set[str] = set()
        self._deliveries: deque[ReceivedEntry] = deque()
        self._current: ReceivedEntry | None = None
        self._messages: Iterator[Message] = iter(())  # of the current delivery
        self._left = 0  # messages of the current delivery that were not handed out
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._damage: HeliographError | None = None  # of an entry; the next call raises it
        self.turns: PermitTurns | None = None  # of partitions that share fewer permits than one for each

    def put(self, delivery: ReceivedEntry) -> None:
        self._deliveries.append(delivery)
        self.wake()

    def fail(self, error: HeliographError) -> None:
        """Make every receive fail with ``error`` once nothing is left to hand out."""
        if self.failure is None:
            self.failure = error
        while self._waiters:
            self.wake()

    def end(self, topic: str) -> None:
        """Note that ``topic`` was terminated and delivered to its end; when all topics are, receiving fails."""
        self._ended.add(topic)
        if self.has_ended:
            self.fail(TopicTerminatedError(f"{', '.join(sorted(self._ended))} was terminated and is read to its end"))

    @property
    def has_ended(self) -> bool:
        """Return whether every topic was terminated and delivered to its end."""
        return len(self._ended) >= self.sources

    def resume(self, topic: str) -> None:
        """Expect messages of ``topic`` again, after a seek in it."""
        self._ended.discard(topic)
        if isinstance(self.failure, TopicTerminatedError):
            self.failure = None

    def permits_of(self, consumer: PartitionConsumer) -> int:
        """Return the permits of queued deliveries to ``consumer``."""
        return sum(
            delivery.permits
            for delivery in self._deliveries
            if delivery.consumer is consumer and delivery.epoch == consumer.epoch
        )

    @property
    def held(self) -> int:
        """Return how many messages of the current epochs wait for a caller."""
        current = self._current
        left = self._left if current is not None and current.epoch == current.consumer.epoch else 0
        return left + sum(each.permits for each in self._deliveries if each.epoch == each.consumer.epoch)

    @property
    def waiters(self) -> int:
        """Return how many callers wait for a message."""
        return sum(not waiter.done() for waiter in self._waiters)

    def purge(self) -> None:
        """Drop the deliveries of earlier epochs."""
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.epoch == delivery.consumer.epoch)

    def has_messages(self) -> bool:
        """Return whether a message of the current epoch is queued."""
        if self._current is not None and self._current.epoch == self._current.consumer.epoch:
            return True
        return any(delivery.epoch == delivery.consumer.epoch for delivery in self._deliveries)

    def packed(self) -> ReceivedEntry | None:
        """Return the next delivery if it has to be unpacked before ``take`` hands it out."""
        if self._current is not None:
            return None
        for delivery in self._deliveries:
            if delivery.epoch == delivery.consumer.epoch:
                return delivery if delivery.needs_unpacking else None
        return None

    def never_lost(self, limit: int) -> int:
        """Return how many of the next ``limit`` messages come before the first that was lost with a consumer. Return -1
        if that is the next one."""
        current = self._current
        is_current = current is not None and current.epoch == current.consumer.epoch
        waiting = [(current, self._left)] if current is not None and is_current else []
        found = 0
        for delivery, count in chain(waiting, ((each, each.unacknowledged.bit_count()) for each in self._deliveries)):
            if delivery.epoch != delivery.consumer.epoch:
                continue
            if delivery.crashes:
                return found or -1
            found += count
            if found >= limit:
                break
        return min(found, limit)

    def take(self, limit: int) -> list[Message]:
        """Return up to ``limit`` queued messages without waiting, none of a delivery that ``packed`` returns.

        Raises:
            UnsupportedError, ChecksumError, ProtocolError: The next entry cannot be unpacked; it is skipped and not
                acknowledged.
        """
        if self._damage is not None:
            error, self._damage = self._damage, None
            raise error
        taken: list[Message] = []
        try:
            while len(taken) < limit and self._advance():
                if self._left == 1:
                    taken.extend(self._messages)
                    self._current = None
                    continue
                before = len(taken)
                taken.extend(islice(self._messages, limit - before))
                self._left -= len(taken) - before
                if len(taken) < limit or self._left <= 0:
                    self._current = None
        except HeliographError as error:
            if self._current is not None:
                self._current.reached = self._current.count  # no caller gets the rest of this delivery
            self._current = None
            if not taken:
                raise
            self._damage = error  # the messages before it are good; the next call raises
        if self._current is not None or self._deliveries:
            self.wake()  # another waiting caller may take the rest
        return taken

    async def wait(self, deadline: float | None) -> bool:
        """Wait until there may be something to take; return False if ``deadline`` (loop time) passed before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(deadline, _time_out, future) if deadline is not None else None
        self._waiters.append(future)
        if self.turns is not None:
            self.turns.next()
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result():
                self.wake()  # this caller was woken but is cancelled: wake another
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)
                if self.turns is not None:
                    self.turns.end_surplus()

    def _advance(self) -> bool:
        """Make the next delivery the current one if there is no current one; return False if there is none, or if it
        has to be unpacked first."""
        while True:
            current = self._current
            if current is not None and current.epoch == current.consumer.epoch:
                return True
            self._current = None
            if not self._deliveries:
                return False
            delivery = self._deliveries[0]
            is_wanted = delivery.epoch == delivery.consumer.epoch
            if is_wanted and delivery.needs_unpacking:
                return False
            self._deliveries.popleft()
            if is_wanted:
                delivery.consumer.on_delivery_taken(delivery)
                self._current = delivery
                self._left = delivery.unacknowledged.bit_count()
                self._messages = delivery.messages()

    def wake(self) -> None:
        """End the wait of the caller that has waited longest."""
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(True)
                return


class PermitTurns:
    """The permits of a consumer that asks for fewer messages than it has partitions.

    One partition after the other is asked. All are asked while a caller has waited for ``ASK_ALL_SECONDS``; once a
    message comes, the requests to the others are cancelled. Messages that they had sent by then go back to the
    subscription, so that no message waits behind a busy caller while other consumers are idle.

    Args:
        most: messages that may wait for a caller, with those that are asked for; 0: as many as callers wait. # I15
    """

    def __init__(self, inbox: Inbox, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._inbox = inbox
        self._most = most
        self._loop = loop
        self._parts: deque[PartitionConsumer] = deque()  # the one that is asked next is the first
        self._asked: set[PartitionConsumer] = set()  # have a permit each
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _limit(self) -> int:
        return self._most or self._inbox.waiters

    def join(self, part: PartitionConsumer) -> None:
        """Ask a partition, too, which has just subscribed; it may have been here before."""
        self._asked.discard(part)
        if part not in self._parts:
            self._parts.appendleft(part)
        self.next()

    def leave(self, part: PartitionConsumer) -> None:
        """Ask a partition no more: it is not subscribed."""
        if part in self._parts:
            self._parts.remove(part)
        self._asked.discard(part)
        self.next()

    def next(self) -> None:
        """Ask as many partitions as the limit allows; soon all of them if a caller waits."""
        while self._inbox.held + len(self._asked) < self._limit and self._ask():
            pass
        if self._timer is None and len(self._asked) < len(self._parts) and self._inbox.waiters:
            self._timer = self._loop.call_later(ASK_ALL_SECONDS, self._ask_all)

    def answered(self, part: PartitionConsumer) -> None:
        """Note that a partition has used its permit."""
        self._asked.discard(part)

    def has_asked(self, part: PartitionConsumer) -> bool:
        return part in self._asked

    @property
    def is_full(self) -> bool:
        """Return whether as many messages wait for a caller as may. Further messages have to go back."""
        return self._inbox.held >= self._limit

    def end_surplus(self) -> None:
        """End the permits that are above the limit, now that a message has come."""
        while self._asked and self._inbox.held + len(self._asked) > self._limit:
            part = self._asked.pop()
            part.ask(0)
            self._parts.remove(part)
            self._parts.appendleft(part)  # it was asked for nothing

    def _ask(self) -> bool:
        """Ask the next partition for messages. Return False if all are asked."""
        for _ in range(len(self._parts)):
            part = self._parts[0]
            self._parts.rotate(-1)
            if part not in self._asked:
                self._asked.add(part)
                part.ask(1)
                return True
        return False

    def _ask_all(self) -> None:
        self._timer = None
        while self._inbox.waiters and not self._inbox.held and self._ask():
            pass


def _time_out(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
