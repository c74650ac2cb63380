"""WebSocket connections, which a busy machine has time to open."""

from __future__ import annotations

from functools import partial

from websockets.asyncio.client import connect as connect_within

OPEN_SECONDS = 60.0

connect = partial(connect_within, open_timeout=OPEN_SECONDS)
