"""Every bound of the etcd backend, with its unit, beside those of ``metadata/session_limits.py``.

A session is a lease; its signs of life are the renewals, which come from a thread of their own, whatever the event loop
does. A new leader of etcd gives every lease its full time again: that only adds to what the owner counts on.
"""

from __future__ import annotations

LOOP_STALL_SECONDS_MAX = 30.0  # an event loop that is dead this long does not keep its session: others shall take over

ATTEMPT_SECONDS_MIN = 1.0  # what one endpoint gets at least, while there is time
CALL_SECONDS_MAX = 10.0  # for one answer of etcd

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
