"""Every bound of the etcd backend, with its unit, beside those of ``metadata/session/limits.py``.

A session is a lease, renewed by a thread of its own, so a busy event loop costs no session. A new leader of etcd gives
every lease its full time again, so the lease ends no sooner than its owner expects.
"""

from __future__ import annotations

LOOP_STALL_SECONDS_MAX = 30.0  # the lease of an event loop that is dead this long is not renewed

CALL_SECONDS_MAX = 10.0  # for one answer of etcd

OPERATIONS_MAX = 128  # of one etcd transaction: the default of etcd's --max-txn-ops
READS_PER_REQUEST_MAX = 32  # each takes up to four operations
READ_REQUESTS_MAX = 8  # under way
BATCH_BYTES_MAX = 1 << 20  # of the values in one transaction that carries several calls; etcd's own limit is 1.5 MiB
RECEIVE_BYTES_MAX = 256 << 20  # of one answer: 128 values of 1 MiB and what is around them
CONFLICTS_MAX = 1_000  # of one transaction with those of other clients, in a row
CONFLICTS_WITHOUT_PAUSE = 3
CONFLICT_PAUSE_MS = 16  # after that many conflicts; doubles; each pause is a random share of it
CONFLICT_PAUSE_MS_MAX = 50
CACHED_ENTRIES_MAX = 20_000  # observed nodes that are kept, to write without reading first
DEPTH_MAX = 0xFFFF  # names in a path: what the keys have room for

assert READS_PER_REQUEST_MAX * 4 <= OPERATIONS_MAX, "a request of reads fits"
