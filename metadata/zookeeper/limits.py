"""Every bound of the ZooKeeper backend, with its unit; how the session's times hang together (I13).

A session of the granted timeout T:
- a request of our own goes out every T / PINGS_PER_TIMEOUT;
- a connection that answers nothing for T * SILENCE_SHARE while a request is under way is given up: SUSPENDED;
- T * LOST_SHARE after *sending* the latest request that was answered, the session is declared LOST, by our own clock
  and for good. The server heard that request later than it was sent and waits at least the full T from then (it
  rounds up to its next tick), so the owner knows first. kazoo alone would say LOST only after speaking to a server.
"""

from __future__ import annotations

PINGS_PER_TIMEOUT = 6
SILENCE_SHARE = 1 / 3
LOST_SHARE = 2 / 3
assert 1 / PINGS_PER_TIMEOUT < SILENCE_SHARE < LOST_SHARE < 1, "ping, notice the silence, re-attach, give up, expire"

DEFAULT_PORT = 2181
REQUESTS_IN_FLIGHT_MAX = 128  # given to kazoo and not answered: its wake-up pipe must never fill and block the loop
REQUESTS_WAITING_MAX = 65_536  # not given to kazoo yet; more fail with ConnectionLossError
CALL_WAIT_MS_MAX = 5_000  # for a connection, before a call fails unsent
ANSWER_MS_MAX = 30_000  # for an answer, before the connection is given up
CONNECT_MS_MAX = 10_000  # for the first connection
CLOSE_MS_MAX = 2_000  # for the answer to a close
RECONNECT_PAUSE_MS = 20  # after all endpoints failed once; doubles
RECONNECT_PAUSE_MS_MAX = 500
TICK_MS_MAX = 200  # how often the clocks are looked at, at least
REQUEST_BYTES_MAX = 8 << 20  # of one request; the server's own jute.maxbuffer may be lower
SERVER_BYTES_DEFAULT = 0xFFFFF  # a server's jute.maxbuffer when nobody has set it
WATCHES_MAX = 100_000  # of one session
ATTEMPT_SECONDS_MIN = 0.2  # what one attempt to re-connect gets at least
