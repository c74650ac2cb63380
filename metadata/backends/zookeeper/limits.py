"""Every bound of the ZooKeeper backend, with its unit, beside those of ``metadata/session/limits.py``.

The server rounds a session's timeout up to its next tick: that only adds to the time that the owner has. kazoo alone
would say LOST only after speaking to a server.
"""

from __future__ import annotations

DEFAULT_PORT = 2181
REQUESTS_IN_FLIGHT_MAX = 128  # given to kazoo and not answered: its wake-up pipe must never fill and block the loop
REQUEST_BYTES_MAX = 8 << 20  # of one request; the server's own jute.maxbuffer may be lower
SERVER_BYTES_DEFAULT = 0xFFFFF  # a server's jute.maxbuffer when nobody has set it
WATCHES_MAX = 100_000  # of one session
RECONNECT_SECONDS_MIN = 0.2  # what one attempt to re-connect gets at least
