"""Every bound of the embedded server and its client, with its unit, beside those of ``metadata/session/limits.py``."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.frame_budget import BUDGET_LEAST
from heliograph.base.guard.listener import ListenerLimits
from heliograph.base.settings import check_limits, setting

# Server
HELD_BYTES_MAX = 64 << 20  # requests and answers not durable yet, all clients together; then reading pauses
WATCHES_PER_CONNECTION_MAX = 100_000
OPERATIONS_MAX = 10_000  # of one transaction
SESSIONLESS_MS_MAX = 10_000  # how long a connection may stay without a session
REAPABLE_MAX = 10_000  # paths of nodes to be reaped, in one answer
NODE_CACHE_BYTES = 32 << 20  # of nodes in use, as Python objects; others are read from RocksDB
NODE_OVERHEAD_BYTES = 450  # of one in the cache, beside its path and value (measured: 440)
READERS_MAX = 2  # threads that read nodes which are not in memory
BLOCK_CACHE_BYTES = 32 << 20  # of RocksDB's blocks in memory, with its filters and indexes
EXPIRY_TICK_MS = 50  # between two looks for expired sessions at least
EXPIRY_WAIT_MS_MAX = 500  # and at most, also where no session is due sooner

# Client
REQUESTS_IN_FLIGHT_MAX = 4_096  # sent and not answered; more wait their turn
RESET_WATCHES_MAX = 1_000  # in one request


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits that may differ between servers; those of an endpoint have further ones."""

    session_timeout_ms_min: int = setting(1_000, "shortest session timeout that a client is given", least=1)
    session_timeout_ms_max: int = setting(120_000, "longest session timeout that a client is given", least=1)
    connections_max: int = setting(10_000, "open connections; further ones are closed at once", least=1)
    connections_per_address_max: int = setting(
        5_000, "the same of one address; an IPv6 address counts by its /64", least=1
    )
    unfinished_bytes_max: int = setting(
        128 << 20,
        "bytes of frames that are not complete, of all connections; one address may have half of it. Above it sockets "
        "are not read, and connections whose frames do not go on are closed",
        least=BUDGET_LEAST,
    )
    unfinished_ms_max: int = setting(
        30_000, "time in which a frame has to arrive, and one second more for each 16 KiB of it", least=1
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.session_timeout_ms_min > self.session_timeout_ms_max:
            raise InvalidConfigError(
                "the shortest session timeout is above the longest", field="session_timeout_ms_min"
            )

    @property
    def listener(self) -> ListenerLimits:
        return ListenerLimits(
            self.connections_max, self.connections_per_address_max, self.unfinished_bytes_max, self.unfinished_ms_max
        )
