"""A broker in a process of its own: ``python -m tests.chaos.broker_host <metadata url> <broker id> <port>``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from tests.bench.serving import serve

SESSION_TIMEOUT_MS = 4_000


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Start the broker and return its service URL."""
    metadata_url, broker_id, port = sys.argv[1:]
    config = BrokerConfig(
        broker_id, port=int(port), housekeeping_seconds=1.0, session_timeout_ms=SESSION_TIMEOUT_MS,
        shutdown_seconds_max=5.0, probe_seconds=0.0,
    )  # fmt: skip
    sessions = BrokerSessions(config, metadata_url)
    return await sessions.start(), sessions.stop


if __name__ == "__main__":
    serve(start)
