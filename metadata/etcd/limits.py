"""Every bound of the etcd backend, with its unit; how the session's times hang together (I13).

A session is a lease of T seconds, the number that etcd granted:
- a thread of its own renews the lease every T / RENEWALS_PER_TIMEOUT, whatever the event loop does;
- when no renewal was answered for T * SILENCE_SHARE, the connection is given up: SUSPENDED, and another endpoint is
  tried;
- T * LOST_SHARE after *sending* the latest renewal that was answered, the session is LOST, by our own clock and for
  good. etcd granted the full T later than that renewal was sent, so the owner knows first, with T * (1 - LOST_SHARE) to
  spare for clocks that run apart. A new leader of etcd gives every lease its full time again: that only adds to it.
"""

from __future__ import annotations

RENEWALS_PER_TIMEOUT = 6
SILENCE_SHARE = 1 / 3
LOST_SHARE = 2 / 3
assert 1 / RENEWALS_PER_TIMEOUT < SILENCE_SHARE < LOST_SHARE < 1, (
    "renew, notice the silence, re-attach, give up, expire"
)

LOOP_STALL_SECONDS_MAX = 30.0  # an event loop that is dead this long does not keep its session: others shall take over
TICK_SECONDS_MAX = 0.2  # how often the loop looks at its clock

CONNECT_MS_MAX = 10_000  # for the first connection, all endpoints together
ATTEMPT_SECONDS_MIN = 1.0  # what one endpoint gets at least, while there is time
CALL_SECONDS_MAX = 10.0  # for one answer of etcd
CALL_WAIT_SECONDS_MAX = 5.0  # for a connection, before a call fails
ANSWER_SECONDS_MAX = 30.0  # for a call, however often it has to be sent
CLOSE_SECONDS_MAX = 2.0  # for the answer to the end of a session
RECONNECT_PAUSE_MS = 20  # after every endpoint failed once; doubles
RECONNECT_PAUSE_MS_MAX = 500

CALLS_WAITING_MAX = 65_536  # of one session; more fail with ConnectionLossError
OPERATIONS_MAX = 128  # of one etcd transaction: the default of etcd's --max-txn-ops
READS_PER_REQUEST_MAX = 40  # each takes three operations
READ_REQUESTS_MAX = 8  # under way
BATCH_BYTES_MAX = 1 << 20  # of the values in one transaction that carries several calls; etcd's own limit is 1.5 MiB
RECEIVE_BYTES_MAX = 256 << 20  # of one answer: 128 values of 1 MiB and what is around them
CONFLICTS_MAX = 1_000  # of one transaction with those of other clients, in a row
CONFLICTS_WITHOUT_PAUSE = 3
CONFLICT_PAUSE_MS_MAX = 50
CACHED_ENTRIES_MAX = 20_000  # what is remembered of nodes, to write without reading first
DEPTH_MAX = 0xFFFF  # names in a path: what the keys have room for

assert READS_PER_REQUEST_MAX * 3 <= OPERATIONS_MAX, "a request of reads fits"
