"""What the clients of every backend bound alike, with units; how the times of a session hang together (I13).

A session of the granted timeout T:
- a sign of life is asked of the store every T / PINGS_PER_TIMEOUT;
- when there was none for T * SILENCE_SHARE, the connection is given up: SUSPENDED;
- T * LOST_SHARE after *sending* the latest request that was answered, the session is LOST, by our own clock and for
  good. The store heard that request later than it was sent and waits at least the full T from then, so the owner
  knows first, with T * (1 - LOST_SHARE) to spare for clocks that run apart.
"""

from __future__ import annotations

PINGS_PER_TIMEOUT = 6
SILENCE_SHARE = 1 / 3
LOST_SHARE = 2 / 3
assert 1 / PINGS_PER_TIMEOUT < SILENCE_SHARE < LOST_SHARE < 1, "ping, notice the silence, re-attach, give up, expire"

TICK_SECONDS_MAX = 0.2  # how often the clocks are looked at, at least
CONNECT_MS_MAX = 10_000  # for the first connection, all endpoints together
RECONNECT_PAUSE_MS = 20  # after every endpoint failed once; doubles
RECONNECT_PAUSE_MS_MAX = 500
CALL_WAIT_SECONDS_MAX = 5.0  # for a connection, before a call fails unsent
ANSWER_SECONDS_MAX = 30.0  # for an answer, before the connection, or the call, is given up
CLOSE_SECONDS_MAX = 2.0  # for the answer to the end of a session
CALLS_WAITING_MAX = 65_536  # not sent, of one session; more fail with ConnectionLossError
