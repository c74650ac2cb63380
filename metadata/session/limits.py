"""The bounds that the clients of all backends share, with units, and the times of a session.

A session of the granted timeout T:
- the client pings the store every T / PINGS_PER_TIMEOUT;
- after a silence of T * SILENCE_SHARE the client drops the connection: the session is SUSPENDED;
- T * DOUBT_SHARE after *sending* the latest request that was answered, the session is in doubt, by the client's own
  clock. The store received that request later than it was sent and waits at least the full T from then, so the owner
  is in doubt before the store ends the session, with T * (1 - DOUBT_SHARE) to spare for clocks that run apart.
- The session is LOST when the store says so, or when it is closed. A silent store proves nothing (I13).
"""

from __future__ import annotations

PINGS_PER_TIMEOUT = 6
SILENCE_SHARE = 1 / 3
DOUBT_SHARE = 2 / 3
assert 1 / PINGS_PER_TIMEOUT < SILENCE_SHARE < DOUBT_SHARE < 1, (
    "a ping comes before the silence, the silence before the doubt, the doubt before the store's own end"
)

TICK_SECONDS_MAX = 0.5  # the longest time between two looks at the clock
CONNECT_MS_MAX = 10_000  # for the first connection, all endpoints together
ATTEMPT_SECONDS_MIN = 1.0  # what one attempt to connect gets at least, while there is time
RECONNECT_PAUSE_MS = 20  # after every endpoint failed once; doubles
RECONNECT_PAUSE_MS_MAX = 500
CALL_WAIT_SECONDS_MAX = 5.0  # how long a call waits for a connection before it fails unsent
ANSWER_SECONDS_MAX = 30.0  # how long an answer may take before the connection, or the call, is given up
CLOSE_SECONDS_MAX = 2.0  # how long to wait for the answer to the end of a session
CALLS_WAITING_MAX = 65_536  # not sent, of one session; more fail with ConnectionLossError
