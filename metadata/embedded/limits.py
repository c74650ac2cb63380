"""Every bound of the embedded server and its client, with its unit; how the session's times hang together (I13).

A session of timeout T:
- the client sends a ping every T / PINGS_PER_TIMEOUT;
- a connection that answers nothing for T * SILENCE_SHARE while a call is under way is given up: SUSPENDED;
- T * LOST_SHARE after *sending* the latest call that was answered, the client declares the session LOST, by its own
  clock and for good. The server heard that call later than it was sent and waits the full T from then, so the client
  knows first, with T * (1 - LOST_SHARE) to spare for clocks that run apart.
"""

from __future__ import annotations

from dataclasses import dataclass

PINGS_PER_TIMEOUT = 6
SILENCE_SHARE = 1 / 3
LOST_SHARE = 2 / 3
assert 1 / PINGS_PER_TIMEOUT < SILENCE_SHARE < LOST_SHARE < 1, "ping, notice the silence, re-attach, give up, expire"

# Server
HELD_BYTES_MAX = 64 << 20  # requests and answers not durable yet, all clients together; then reading pauses
WATCHES_PER_CONNECTION_MAX = 100_000
CONNECTIONS_MAX = 10_000
SESSIONLESS_MS_MAX = 10_000  # how long a connection may stay without a session
EXPIRY_TICK_MS = 50  # how often sessions are looked through

# Client
REQUESTS_IN_FLIGHT_MAX = 4_096  # sent and not answered; more wait their turn
REQUESTS_WAITING_MAX = 65_536  # not sent; more fail with ConnectionLossError
CALL_WAIT_MS_MAX = 5_000  # for a connection, before a call fails unsent
ANSWER_MS_MAX = 30_000  # for an answer, before the connection is given up
CONNECT_MS_MAX = 10_000  # for the first connection
CLOSE_MS_MAX = 2_000  # for the answer to a close
RECONNECT_PAUSE_MS = 20  # after the first failure; doubles
RECONNECT_PAUSE_MS_MAX = 500
RESET_WATCHES_MAX = 1_000  # in one request


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of the session timeout that a client may ask for."""

    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 120_000

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max, "a range"
