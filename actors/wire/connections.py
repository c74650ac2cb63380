"""The connections of one ledger client: one for each bookie, at the address that it has now."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable

from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.grant import ReadGrant
from heliograph.actors.wire.group import SHARED_ENTRIES_LEAST, BookieGroup
from heliograph.actors.wire.ranges import RANGE_ENTRIES_MAX, SHARED_IDS_FROM
from heliograph.base.processes import end_process
from heliograph.base.tls.contexts import ClientTls
from heliograph.metrics.metric import Histogram


class BookieClient:
    """The connections to bookies of one ledger client."""

    def __init__(
        self,
        address_of: Callable[[str], str | None],
        now: Callable[[], int],
        *,
        secret: str | ReadGrant | None = None,
        on_broken: Callable[[BaseException], None] = end_process,
        tls: ClientTls | None = None,
        timeout_ms: int = 0,
    ) -> None:
        """Args:
        address_of: returns the address of a bookie, None if it is unknown.
        now: the clock of the deadlines, in milliseconds.
        secret: the cluster's, if it has one, or a grant.
        on_broken: called with an error that a callback raised; by default the process ends.
        timeout_ms: from an add to its deadline.
        """
        self._timeout_ms = timeout_ms
        self._address_of = address_of
        self._tls = tls
        self._now = now
        self._secret = secret
        self._on_broken = on_broken
        self._is_closed = False
        self._connections: dict[str, BookieConnection] = {}
        self._groups: weakref.WeakValueDictionary[tuple[str, ...], BookieGroup] = weakref.WeakValueDictionary()
        self._gathering: list[BookieGroup] = []  # groups with entries that wait for the end of this turn
        self._due: dict[BookieConnection, None] = {}  # their connections
        self._shared_ids = itertools.count(SHARED_IDS_FROM, RANGE_ENTRIES_MAX)

    def connection(self, bookie_id: str) -> BookieConnection | None:
        """Return the connection to a bookie, None if its address is unknown or the client is closed."""
        connection = self._connections.get(bookie_id)
        if connection is not None and connection.is_open:
            return connection
        return None if self._is_closed else self._at_its_address(bookie_id, connection)

    @property
    def add_latencies(self) -> dict[str, Histogram]:
        """Return how long the bookies that this client knows take for adds, since it connected to their address."""
        return {bookie_id: connection.add_latency for bookie_id, connection in self._connections.items()}

    def group(self, bookie_ids: tuple[str, ...]) -> BookieGroup:
        """Return the connections to bookies that get the same entries.

        Args:
            bookie_ids: sorted.
        """
        group = self._groups.get(bookie_ids)
        if group is None:
            call_soon = asyncio.get_running_loop().call_soon
            group = BookieGroup(bookie_ids, self.connection, self._shared_ids, call_soon, self._gather)
            self._groups[bookie_ids] = group
        return group

    def _gather(self, group: BookieGroup) -> None:
        if not self._gathering:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._gathering.append(group)
        for connection in group.connections:
            connection.is_flush_due = True
            self._due[connection] = None

    def _end_turn(self) -> None:
        """Write the entries that the groups have gathered."""
        groups, self._gathering = self._gathering, []
        due, self._due = self._due, {}
        for group in groups:
            is_shared = len(groups) == 1 or group.gathered >= SHARED_ENTRIES_LEAST
            group.end_frame(is_shared=is_shared)
            group.end_lacs(is_shared=is_shared)
        for connection in due:
            connection.flush()

    def _at_its_address(self, bookie_id: str, connection: BookieConnection | None) -> BookieConnection | None:
        address = self._address_of(bookie_id)
        if connection is not None and (address is None or address == connection.address):
            return connection
        if connection is not None:  # later: it answers waiting requests, and no answer may come during a call
            asyncio.get_running_loop().call_soon(connection.close)
        if address is None:
            return None
        connection = self._connections[bookie_id] = BookieConnection(
            bookie_id,
            address,
            self._now,
            secret=self._secret,
            on_broken=self._on_broken,
            tls=self._tls,
            timeout_ms=self._timeout_ms,
        )
        for group in self._groups.values():
            group.forget_connections()
        return connection

    def expire(self, now: int) -> None:
        """Answer the requests of all connections whose deadline has passed with an error. Replace the connections to
        bookies whose address has changed."""
        for bookie_id, connection in list(self._connections.items()):
            connection.expire(now)
            self._at_its_address(bookie_id, connection)  # it may have moved, with its old connection still open

    def retry_now(self) -> None:
        """Connect at the next requests, even right after attempts that failed: bookies may have come back."""
        for connection in self._connections.values():
            connection.retry_now()

    def close(self) -> None:
        """Close every connection. None is opened afterwards."""
        self._is_closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
