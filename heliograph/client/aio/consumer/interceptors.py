"""Interceptors of consumers and readers: code of the user that sees messages and acknowledgements."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from heliograph.base.errors import HeliographError
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.interceptor_chain import InterceptorChain
from heliograph.protocol.message_id import MessageId

log = logging.getLogger(__name__)


class ConsumerInterceptor:
    """The base of a consumer's interceptors: override the methods that you need.

    The methods run on the event loop of the handle and must not block. An interceptor that raises is logged and passed
    over: the caller receives the message as it was before, and the next interceptor gets it. It has to be picklable if
    the handle is pickled.
    """

    def before_consume(self, message: Message) -> Message:
        """Return the message that the caller receives instead, or the same."""
        return message

    def on_acknowledge(self, message_ids: Sequence[MessageId], error: HeliographError | None) -> None:
        """Learn the outcome of an acknowledgement.

        Args:
            message_ids: The messages of one call.
            error: None if it is durable; or what the caller gets, and the messages may come again.
        """

    def on_acknowledge_cumulative(self, message_id: MessageId, error: HeliographError | None) -> None:
        """Learn the outcome of a cumulative acknowledgement.

        Args:
            message_id: The last of the messages.
            error: As for ``on_acknowledge``.
        """

    def on_negative_ack(self, message_ids: Sequence[MessageId]) -> None:
        """Learn that ``message_ids`` were acknowledged negatively."""

    def on_ack_timeout(self, message_ids: Sequence[MessageId]) -> None:
        """Learn that the entries of ``message_ids`` are requested again, since no acknowledgement came in time."""


class ConsumerInterceptors(InterceptorChain[ConsumerInterceptor]):
    """The interceptors of one consumer, in the order in which they are called."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        super().__init__(interceptors, log)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def before_consume(self, message: Message) -> Message:
        """Return the message as the last interceptor leaves it."""
        return self._passed("before_consume", message, Message, "; the message is received without it")

    def acknowledged(self, message_ids: Sequence[MessageId], error: HeliographError | None) -> None:
        """Tell all interceptors of an acknowledgement."""
        self._tell("on_acknowledge", message_ids, error)

    def acknowledged_cumulatively(self, message_id: MessageId, error: HeliographError | None) -> None:
        """Tell all interceptors of a cumulative acknowledgement."""
        self._tell("on_acknowledge_cumulative", message_id, error)

    def negatively_acknowledged(self, message_ids: Sequence[MessageId]) -> None:
        """Tell all interceptors of a negative acknowledgement."""
        self._tell("on_negative_ack", message_ids)

    def timed_out(self, message_ids: Sequence[MessageId]) -> None:
        """Tell all interceptors of acknowledgements that did not come in time."""
        self._tell("on_ack_timeout", message_ids)
