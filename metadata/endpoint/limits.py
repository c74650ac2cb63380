"""The bounds of the endpoint, with their units (I15), and the relation of the two sessions' timeouts.

A client's session of timeout T uses a session with the store of timeout T * STORE_TIMEOUT_FACTOR. The endpoint ends
both when the client was silent for T. When the endpoint itself dies, the store ends the session: a live store session
sent its last message at most half its timeout ago, so with the factor of 2 the session ends at least T and at most 2 T
after the last answer to the client.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.settings import setting
from heliograph.metadata.backends.embedded.limits import ServerLimits

STORE_TIMEOUT_FACTOR = 2

GREETING_BYTES_MAX = 8 << 10  # of the first frame of a client, without its length
FRAME_BYTES_MAX = 8 << 20  # of one request without its length, as in the embedded store's protocol
SESSIONS_MAX = 10_000  # with and without a connection; further clients get no session
HANDSHAKE_MS_MAX = 10_000  # how long a connection may stay without a session, or without showing who it is
REQUESTS_QUEUED_MAX = 256  # read and not answered, of one connection; then reading pauses
REQUEST_BYTES_QUEUED_MAX = 16 << 20  # the same in bytes
WRITES_IN_FLIGHT_MAX = 128  # begun and not answered, of one connection
OUTPUT_BYTES_PAUSE = 1 << 20  # not read by the client: no further request is handled
OUTPUT_BYTES_MAX = 16 << 20  # not read by the client, watch events included: the connection is closed
WATCHES_PER_SESSION_MAX = 100_000
STANDING_WATCHES_MAX = 1_000  # persistent watches of one session
EVENTS_HELD_MAX = 10_000  # events of one session that wait for the present answer; then the connection is closed
IDENTITIES_PER_CONNECTION_MAX = 16
ACL_ENTRIES_MAX = 64  # of one node
ACL_RECORDS_MAX = 100_000  # nodes whose ACL is not world:anyone:cdrwa
EPHEMERALS_TRACKED_MAX = 10_000  # of one session, for getEphemerals
DESCENDANTS_MAX = 100_000  # nodes that getAllChildrenNumber counts
READS_AT_ONCE_MAX = 64  # records of ACLs, when all are read
TICK_MS = 50  # between two checks of all deadlines
RETRY_MS = 500  # after a failure of the endpoint's own session
REAPS_AT_ONCE_MAX = 10_000  # nodes that are looked for at a time
CONTAINER_CHECK_MS = 60_000  # between two searches for containers and nodes with a time to live
CONTAINERS_PER_MINUTE_MAX = 10_000  # how many of them are deleted
SWEEP_SECONDS = 600  # between two searches for ACLs whose nodes are deleted
CLOSE_MS_MAX = 5_000  # for ending the sessions when the endpoint stops
assert OUTPUT_BYTES_PAUSE < OUTPUT_BYTES_MAX
assert FRAME_BYTES_MAX <= REQUEST_BYTES_QUEUED_MAX, "one request always fits"
assert WRITES_IN_FLIGHT_MAX <= REQUESTS_QUEUED_MAX // 2, "reading resumes while enough requests are queued"


@dataclass(frozen=True, slots=True)
class EndpointLimits(ServerLimits):
    """The limits that may differ between endpoints. A client's session timeout is limited to this range."""

    session_timeout_ms_max: int = setting(60_000, "longest session timeout that a client is given", least=1)
    connections_max: int = setting(1_000, "open connections; further ones are closed at once", least=1)
    connections_per_address_max: int = setting(
        500, "the same of one address; an IPv6 address counts by its /64", least=1
    )
    handshake_ms_max: int = setting(
        HANDSHAKE_MS_MAX,
        "time in which a client has to open a session and, if authentication is enabled, to authenticate",
        least=1,
    )
    container_check_ms: int = setting(
        CONTAINER_CHECK_MS,
        "time between two searches for containers and nodes with a time to live",
        least=1,
        decided="the option --container-check-seconds of helio metadata serve",
    )
    containers_per_minute_max: int = setting(
        CONTAINERS_PER_MINUTE_MAX, "containers and nodes with a time to live that are deleted in a minute", least=1
    )

    def negotiated(self, asked_ms: int) -> int:
        """Return the session timeout for a client that asks for ``asked_ms``."""
        return max(self.session_timeout_ms_min, min(asked_ms, self.session_timeout_ms_max))
