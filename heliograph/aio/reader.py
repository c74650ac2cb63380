"""The asyncio reader: follows a topic from a place of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator

from heliograph.aio.consumer import AsyncConsumer
from heliograph.errors import UnsupportedError
from heliograph.message import Message
from heliograph.options import ConsumerOptions
from heliograph.protocol.message_id import MessageId


class AsyncReader(AsyncConsumer):
    """Reads a topic without a durable subscription: nothing is acknowledged and nothing is kept for it.

    After a lost connection it goes on behind the last message that its caller received, so none is missed or repeated.
    """

    async def has_message_available(self) -> bool:
        """Whether a ``receive`` would find a message that is in the topic now.

        Raises:
            ConnectionLostError, RequestTimeoutError: the broker could not be reached in time.
        """
        await self.open()
        if self._inbox.has_messages():
            return True
        parts = list(self._parts.values())
        answers = await asyncio.gather(*(part.last_message_id() for part in parts))
        for part, (last, mark) in zip(parts, answers, strict=True):
            place = part.last_taken or part.start
            if place == MessageId.LATEST:
                place = mark or last
            if last.entry_id >= 0 and _is_behind(place, last, part.start_inclusive and part.last_taken is None):
                return True
        return False

    async def ack_many(self, messages: object) -> None:
        """Readers do not acknowledge.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("a reader has nothing to acknowledge; use a consumer with a subscription")

    async def ack_cumulative(self, message: object) -> None:
        """See ``ack_many``."""
        await self.ack_many(message)

    async def nack(self, message: object) -> None:
        """See ``ack_many``."""
        await self.ack_many(message)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    def _subscribing(self) -> ConsumerOptions:
        name = self.options.subscription or f"reader-{secrets.token_hex(5)}"
        return dataclasses.replace(self.options, subscription=name)

    async def _receive(self, limit: int, timeout: float | None) -> list[Message]:
        messages = await super()._receive(limit, timeout)
        for message in messages:
            delivery = message._delivery
            assert delivery is not None, "received here"
            delivery.consumer.on_read(message.message_id)
        return messages


def _is_behind(place: MessageId | None, last: MessageId, inclusive: bool) -> bool:
    """Whether ``last`` comes after ``place``, or is it when ``inclusive``."""
    if place is None:
        return True
    here, there = (place.ledger_id, place.entry_id), (last.ledger_id, last.entry_id)
    if here != there:
        return here < there
    if place.batch_index < 0 or last.batch_index < 0:
        return inclusive
    return place.batch_index < last.batch_index or (inclusive and place.batch_index == last.batch_index)
