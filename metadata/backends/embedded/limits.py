"""Every bound of the embedded server and its client, with its unit, beside those of ``metadata/session/limits.py``."""

from __future__ import annotations

from dataclasses import dataclass

# Server
HELD_BYTES_MAX = 64 << 20  # requests and answers not durable yet, all clients together; then reading pauses
WATCHES_PER_CONNECTION_MAX = 100_000
CONNECTIONS_MAX = 10_000
SESSIONLESS_MS_MAX = 10_000  # how long a connection may stay without a session
REAPABLE_MAX = 10_000  # paths of nodes to be reaped, in one answer
EXPIRY_TICK_MS = 50  # how often expired sessions are looked for

# Client
REQUESTS_IN_FLIGHT_MAX = 4_096  # sent and not answered; more wait their turn
RESET_WATCHES_MAX = 1_000  # in one request


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of the session timeout that a client may ask for."""

    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 120_000

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max, "a range"
