"""Interceptors of producers: code of the user that sees each message on its way out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heliograph.base.clock import Moment
from heliograph.base.errors import HeliographError
from heliograph.client.aio.interceptor_chain import InterceptorChain
from heliograph.protocol.message_id import MessageId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message that a caller wants to send.

    Attributes:
        value: The caller's value, before the schema encodes it. None is a null value.
        key, properties, event_time_ms: As in ``AsyncProducer.send``.
    """

    value: Any
    key: str | bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: Moment | None = None

    def replace(self, **changes: Any) -> OutgoingMessage:
        """Return a copy with ``changes``, which are other values of some attributes."""
        return replace(self, **changes)


class ProducerInterceptor:
    """The base of a producer's interceptors: override the methods that you need.

    The methods run on the event loop of the handle and must not block. An interceptor that raises is logged and passed
    over: the message goes on as it was before, and the next interceptor gets it. It has to be picklable if the handle
    is pickled.
    """

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send instead, or the same; it is called before the value is encoded."""
        return message

    def on_send_acknowledged(
        self, message: OutgoingMessage, message_id: MessageId | None, error: HeliographError | None
    ) -> None:
        """Learn the outcome of a message.

        Args:
            message: As the last interceptor left it.
            message_id: Where it is stored; None if it failed.
            error: The error that its caller gets; None if the message is stored.
        """


class ProducerInterceptors(InterceptorChain[ProducerInterceptor]):
    """The interceptors of one producer, in the order in which they are called."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        super().__init__(interceptors, log)

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message as the last interceptor leaves it."""
        return self._passed("before_send", message, OutgoingMessage, "; the message is sent without it")

    def acknowledged(
        self, message: OutgoingMessage, message_id: MessageId | None, error: HeliographError | None
    ) -> None:
        """Tell all interceptors the outcome of a message."""
        self._tell("on_send_acknowledged", message, message_id, error)
