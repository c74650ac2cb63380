"""Answers that last: what ends them beside their own end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError, HeliographError, ServiceNotReadyError
from heliograph.gateway.services import Services

HEARTBEAT_SECONDS = 15.0  # in which something is sent: proxies close connections that are silent for a minute
HEARTBEAT = b":\n\n"


async def failure_of(
    services: Services, work: Coroutine[Any, Any, None], left: asyncio.Future[None]
) -> BaseException | None:
    """Run what answers a caller until it ends, the caller leaves, its credentials end or the server ends.

    Args:
        left: done once the caller is gone.

    Returns:
        The reason why it failed or was ended; None if it completed, or if the caller is gone.

    Raises:
        BaseException: a fault of our own.
    """
    principal = services.caller.principal
    expires_ms = principal.expires_ms
    seconds = None if expires_ms is None else (expires_ms - wall_ms()) / 1000
    working = asyncio.ensure_future(work)
    revoked = asyncio.ensure_future(services.authenticator.until_revoked(principal))
    ending = asyncio.ensure_future(services.ends.wait())
    try:
        await asyncio.wait((left, working, revoked, ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        was_left, is_ending, has_ended = left.done(), ending.done(), working.done()
    finally:
        working.cancel()
        revoked.cancel()
        ending.cancel()
        await asyncio.gather(working, revoked, ending, return_exceptions=True)
    if has_ended and not working.cancelled():
        error = working.exception()
        if error is not None and not isinstance(error, HeliographError | TimeoutError):
            raise error
        return error
    if was_left:
        return None
    if is_ending:
        return ServiceNotReadyError("the gateway ends")
    return AuthenticationError("the token has ended or was revoked")
