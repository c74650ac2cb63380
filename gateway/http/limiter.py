"""A middleware that keeps callers within their limits: rates, and the bytes of their bodies that are held."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.gateway.errors import refuse_early
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import BodyBudget, RateLimits, tenant_of, too_fast


class Limiter:
    """ASGI middleware behind the door, where the caller is known."""

    def __init__(self, app: ASGIApp, budget: BodyBudget, rates: RateLimits) -> None:
        self._app = app
        self._budget = budget
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request of a caller that has not used up its rate; slow the frames of a WebSocket down."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        caller: Caller = scope["heliograph.caller"]
        keys = [("address", caller.address), ("role", caller.role), ("tenant", tenant_of(scope["path"]))]
        if self._rates.is_on:
            now = time.monotonic()
            wait, kind = self._rates.wait_seconds(keys, now)
            if wait:
                await refuse_early(too_fast(wait, kind), scope, receive, send)
                return
            self._rates.use(keys, 1, 0, now)
        if scope["type"] == "websocket":
            await self._app(scope, self._slowed(receive, keys) if self._rates.is_on else receive, send)
            return
        held = 0

        async def counted() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            if size:
                self._budget.take(caller.address, size)
                held += size
                if self._rates.is_on:
                    self._rates.use(keys, 0, size, time.monotonic())
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if held:
                self._budget.give_back(caller.address, held)

    def _slowed(self, receive: Receive, keys: list[tuple[str, str]]) -> Receive:
        """Return a ``receive`` that waits while the caller is in debt; its frames wait in the socket meanwhile."""

        async def slowed() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                size = len(message.get("text") or message.get("bytes") or b"")
                now = time.monotonic()
                self._rates.use(keys, 1, size, now)
                wait, _ = self._rates.wait_seconds(keys, now)
                if wait:
                    await asyncio.sleep(wait)
            return message

        return slowed
