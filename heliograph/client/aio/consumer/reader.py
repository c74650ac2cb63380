"""The asyncio reader: it reads a topic from a given position on."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets

from typing_extensions import override

from heliograph.base.errors import HeliographError, UnsupportedError
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.options import ConsumerOptions
from heliograph.client.types import Received
from heliograph.protocol.message_id import MessageId


class AsyncReader(AsyncConsumer[Received]):
    """A reader of one topic. It has no durable subscription: it acknowledges nothing, and nothing is kept for it.

    After a lost connection it resumes after the last message that its caller received: no message is missed or
    repeated. An unpickled reader starts at its original start, not where the pickled one stood.

    Opening raises the errors of ``AsyncConsumer``.
    """

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topics[0]

    @property
    def failure(self) -> HeliographError | None:
        """Return the error of every receive once no message is left; None while the reader goes on."""
        return self._inbox.failure

    async def has_message_available(self) -> bool:
        """Return whether the topic holds a message after the last one received, without waiting for new ones.

        Raises:
            ConnectionLostError, RequestTimeoutError: The broker could not be reached in time.
        """
        await self.open()
        if self._returned or self._inbox.has_messages():
            return True
        parts = list(self._parts.values())
        answers = await asyncio.gather(*(part.last_message_id() for part in parts))
        for part, (last, mark) in zip(parts, answers, strict=True):
            read_to = part.last_taken or part.start
            if read_to == MessageId.LATEST:
                read_to = mark or last
            if part.last_chunk == (last.ledger_id, last.entry_id):
                continue  # the reader has everything before it, and of this message not all chunks are stored
            if last.entry_id >= 0 and _is_after(read_to, last, part.start_inclusive and part.last_taken is None):
                return True
        return self._inbox.has_messages()

    @override
    async def ack_many(self, messages: object) -> None:
        """Refuse: a reader has nothing to acknowledge.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError("a reader has nothing to acknowledge; use a consumer with a subscription")

    @override
    async def ack_cumulative(self, message: object) -> None:
        await self.ack_many(message)

    @override
    async def nack(self, message: object) -> None:
        await self.ack_many(message)

    @override
    def _subscribing(self) -> ConsumerOptions:
        name = self.options.subscription or f"reader-{secrets.token_hex(5)}"
        return dataclasses.replace(self.options, subscription=name)

    @override
    def _handed_out(self, messages: list[Message[Received]]) -> list[Message[Received]]:
        last_of = {message._delivery: message for message in messages}  # of each entry, which is what counts
        for delivery, message in last_of.items():
            assert delivery is not None, "a message that was just received has its delivery"
            delivery.consumer.on_read(message.message_id)
        return super()._handed_out(messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic})"


def _is_after(read_to: MessageId | None, last: MessageId, inclusive: bool) -> bool:
    """Return whether ``last`` comes after ``read_to``; if ``inclusive``, also whether it is the same message."""
    if read_to is None:
        return True
    here, there = (read_to.ledger_id, read_to.entry_id), (last.ledger_id, last.entry_id)
    if here != there:
        return here < there
    if read_to.batch_index < 0 or last.batch_index < 0:
        return inclusive
    return read_to.batch_index < last.batch_index or (inclusive and read_to.batch_index == last.batch_index)
