"""Received messages on their way to the caller, over all partitions of a consumer, in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from heliograph.aio.delivery import Delivery
from heliograph.errors import HeliographError, TopicTerminatedError
from heliograph.message import Message

if TYPE_CHECKING:
    from heliograph.aio.partition_consumer import PartitionConsumer


class Inbox:
    """A queue of deliveries that hands out single messages.

    It is bounded by the permits that its consumers grant: nothing is sent that was not asked for. # I15
    Deliveries of an earlier subscribing, which the broker sends again, are never handed out.

    Attributes:
        failure: what every receive raises once nothing is left to hand out.
        sources: topics and partitions that deliver into this inbox.
    """

    def __init__(self, sources: int) -> None:
        self.failure: HeliographError | None = None
        self.sources = sources
        self._ended: set[str] = set()
        self._deliveries: deque[Delivery] = deque()
        self._current: Delivery | None = None
        self._messages: Iterator[Message] = iter(())  # of the current delivery
        self._left = 0  # how many of them
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._damage: HeliographError | None = None

    def put(self, delivery: Delivery) -> None:
        """Adds a delivery."""
        self._deliveries.append(delivery)
        self._wake()

    def fail(self, error: HeliographError) -> None:
        """Makes every receive fail with ``error`` once nothing is left to hand out."""
        if self.failure is None:
            self.failure = error
        while self._waiters:
            self._wake()

    def end(self, topic: str) -> None:
        """Nothing more will ever come from ``topic``; when all topics ended, receiving fails."""
        self._ended.add(topic)
        if self.has_ended:
            self.fail(TopicTerminatedError(f"{', '.join(sorted(self._ended))} ended and is read up to there"))

    @property
    def has_ended(self) -> bool:
        """Whether every topic ended, and the broker gave everything of it."""
        return len(self._ended) >= self.sources

    def resume(self, topic: str) -> None:
        """A seek went back in ``topic``: more may come from it."""
        self._ended.discard(topic)
        if isinstance(self.failure, TopicTerminatedError):
            self.failure = None

    def permits_of(self, consumer: PartitionConsumer) -> int:
        """Permits taken by deliveries to ``consumer`` that nobody took yet."""
        return sum(
            delivery.permits
            for delivery in self._deliveries
            if delivery.consumer is consumer and delivery.epoch == consumer.epoch
        )

    def purge(self) -> None:
        """Frees the deliveries of earlier subscribings."""
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.epoch == delivery.consumer.epoch)

    def has_messages(self) -> bool:
        """Whether something of the current subscribing is here."""
        if self._current is not None and self._current.epoch == self._current.consumer.epoch:
            return True
        return any(delivery.epoch == delivery.consumer.epoch for delivery in self._deliveries)

    def take(self, limit: int) -> list[Message]:
        """Up to ``limit`` messages, at once.

        Raises:
            UnsupportedError, ChecksumError, ProtocolError: the next entry cannot be unpacked; it is skipped and not
                acknowledged.
        """
        if self._damage is not None:
            error, self._damage = self._damage, None
            raise error
        taken: list[Message] = []
        try:
            while len(taken) < limit and self._advance():
                before = len(taken)
                taken.extend(islice(self._messages, limit - before))
                self._left -= len(taken) - before
                if len(taken) < limit or self._left <= 0:
                    self._current = None
        except HeliographError as error:
            self._current = None
            if not taken:
                raise
            self._damage = error  # what came before it is good; the next call raises
        if self._current is not None or self._deliveries:
            self._wake()  # another waiting caller can go on
        return taken

    async def wait(self, deadline: float | None) -> bool:
        """Waits until there may be something to take; False when ``deadline`` (loop time) passed before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(deadline, _give_up, future) if deadline is not None else None
        self._waiters.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result():
                self._wake()  # the news was for this caller, who is gone
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)

    def _advance(self) -> bool:
        """Makes the delivery to take from current; False when there is none."""
        while True:
            current = self._current
            if current is not None and current.epoch == current.consumer.epoch:
                return True
            self._current = None
            if not self._deliveries:
                return False
            delivery = self._deliveries.popleft()
            if delivery.epoch == delivery.consumer.epoch:
                self._current = delivery
                self._messages = delivery.messages()
                self._left = delivery.unacknowledged.bit_count()
                delivery.consumer.on_delivery_taken(delivery)

    def _wake(self) -> None:
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(True)
                return


def _give_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
