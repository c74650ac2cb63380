"""The client's requests, from the call to the frame that answers it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.embedded.limits import REQUESTS_IN_FLIGHT_MAX
from heliograph.metadata.backends.embedded.protocol import OK, EmbeddedOp, decode_error, encode_frame
from heliograph.metadata.session.call_queue import Call, CallQueue

OnResult = Callable[[Any], None]


class EmbeddedRequest(Call):
    """One request. ``on_result`` runs before the future's waiter is woken. Raises ValueTooLargeError if it is above the
    frame limit."""

    __slots__ = ("frame", "number", "on_result")

    def __init__(
        self,
        number: int,
        op: EmbeddedOp,
        arguments: Sequence[Any],
        future: asyncio.Future[Any] | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        super().__init__(future)
        self.number = number
        self.frame = encode_frame([number, op, *arguments])
        self.on_result = on_result


class EmbeddedRequests(CallQueue[EmbeddedRequest]):
    """All requests of one session, by the numbers that ``numbers`` yields."""

    def __init__(self) -> None:
        super().__init__(REQUESTS_IN_FLIGHT_MAX)
        self.numbers = itertools.count(1)

    def settle(self, number: int, code: int, result: Any) -> tuple[float, HeliographError | None] | None:
        """Complete the request that an answer belongs to.

        Return when it was sent, and its error; None for an unknown request.
        """
        request = self.answered(number)
        if request is None:
            return None
        if code != OK:
            error = decode_error(code, result)
            request.fail(error)
            return request.sent_at, error
        if request.on_result is not None and not request.is_over:
            request.on_result(result)
        request.answer(result)
        return request.sent_at, None
