"""Every bound of the endpoint, with its unit, and how the two sessions' times hang together.

A client's session of timeout T rests on a session with the store of timeout T * STORE_TIMEOUT_FACTOR. The endpoint ends
both when it has not heard of the client for T. When the endpoint itself dies, the store ends the session: a live store
session was heard of at most half its timeout ago, so with the factor of 2 that is never within T of the last answer
that the client got, and at most 2 T after it.
"""

from __future__ import annotations

from dataclasses import dataclass

STORE_TIMEOUT_FACTOR = 2

FRAME_BYTES_MAX = 8 << 20  # of one request without its length, as in the embedded store's protocol
CONNECTIONS_MAX = 1_000  # more are closed as soon as they are open
SESSIONS_MAX = 10_000  # with and without a connection; more get no session
HANDSHAKE_MS_MAX = 10_000  # how long a connection may stay without a session
REQUESTS_QUEUED_MAX = 256  # read and not answered, of one connection; then reading pauses
REQUEST_BYTES_QUEUED_MAX = 16 << 20  # the same in bytes
WRITES_IN_FLIGHT_MAX = 128  # begun and not answered, of one connection
OUTPUT_BYTES_PAUSE = 1 << 20  # not taken by the client: no further request is handled
OUTPUT_BYTES_MAX = 16 << 20  # the same, watch events included: the client is cut off
WATCHES_PER_SESSION_MAX = 100_000
STANDING_WATCHES_MAX = 1_000  # persistent ones of one session
EVENTS_HELD_MAX = 10_000  # that wait for the answer in hand, of one session; then the client is cut off
IDENTITIES_PER_CONNECTION_MAX = 16
ACL_ENTRIES_MAX = 64  # of one node
ACL_RECORDS_MAX = 100_000  # nodes whose ACL is not world:anyone:cdrwa
EPHEMERALS_TRACKED_MAX = 10_000  # of one session, for getEphemerals
DESCENDANTS_MAX = 100_000  # nodes that getAllChildrenNumber counts
READS_AT_ONCE_MAX = 64  # records of ACLs, when all are read
TICK_MS = 50  # how often sessions are looked through
RETRY_MS = 500  # after a failure of the endpoint's own session
SWEEP_SECONDS = 600  # between two looks for ACLs whose nodes are gone
CLOSE_MS_MAX = 5_000  # for ending the sessions when the endpoint ends
assert OUTPUT_BYTES_PAUSE < OUTPUT_BYTES_MAX
assert FRAME_BYTES_MAX <= REQUEST_BYTES_QUEUED_MAX, "one request always fits"
assert WRITES_IN_FLIGHT_MAX <= REQUESTS_QUEUED_MAX // 2, "reading is resumed before too little is under way"


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """What may differ from one endpoint to another: the bounds of the session timeout that a client may ask for."""

    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 60_000
    connections_max: int = CONNECTIONS_MAX
    handshake_ms_max: int = HANDSHAKE_MS_MAX

    def __post_init__(self) -> None:
        assert 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max, "a range"
        assert self.connections_max > 0, "a bound"
        assert self.handshake_ms_max > 0, "a bound"

    def negotiated(self, asked_ms: int) -> int:
        """The timeout that a client gets."""
        return max(self.session_timeout_ms_min, min(asked_ms, self.session_timeout_ms_max))
