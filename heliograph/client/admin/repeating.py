"""How a call of the administration is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from heliograph.base.errors import Advice, ConnectionLostError, HeliographError
from heliograph.operations.table import AdminOperation

Place = TypeVar("Place")


async def answered(
    operation: AdminOperation,
    choose: Callable[[], Awaitable[Place]],
    ask: Callable[[Place], Awaitable[Any]],
    pauses: Iterable[float],
) -> Any:
    """Run an operation until there is an answer, an error that stands, or no pause left.

    A call whose outcome is unknown is repeated if the table says that the operation is repeatable; if the repetition
    finds the work done (the topic to be created exists), the call succeeds.

    Args:
        choose: finds a broker to ask; after ConnectionLostError nothing was asked, and it is called again.
        ask: asks.
        pauses: seconds before each further attempt.

    Raises:
        HeliographError: of the last attempt.
    """
    may_have_happened, left = False, iter(pauses)
    while True:
        is_asked = False
        try:
            place = await choose()
            is_asked = True
            return await ask(place)
        except HeliographError as error:
            if is_asked and may_have_happened and isinstance(error, operation.fulfilled_by or ()):
                return None
            if is_asked and (error.advice is Advice.STOP or not operation.is_repeatable):
                raise
            if not is_asked and not isinstance(error, ConnectionLostError):
                raise
            may_have_happened = may_have_happened or (is_asked and error.advice is Advice.RETRY)
            pause = next(left, None)
            if pause is None:
                raise
        await asyncio.sleep(pause)
