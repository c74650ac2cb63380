"""The session of one client with the endpoint: it outlives connections and uses one session with the store."""

from __future__ import annotations

import asyncio
import secrets
from typing import Protocol

from heliograph.metadata.endpoint.limits import EPHEMERALS_TRACKED_MAX
from heliograph.metadata.endpoint.session.watch_table import EndpointWatchTable
from heliograph.metadata.endpoint.wire.jute import signed_64
from heliograph.metadata.endpoint.wire.replies import PASSWORD_BYTES
from heliograph.metadata.store import MetadataStore, SessionState, Stat


class ServedConnection(Protocol):
    """The interface of a connection for its session."""

    def abort(self) -> None:
        """Close the socket immediately, without waiting for answers."""

    async def end(self) -> None:
        """Close the connection and wait until none of its requests is in progress."""


class WireSession:
    """A session. Its id is that of the store's session, so that ``ephemeralOwner`` is the client's own session."""

    def __init__(self, store: MetadataStore, timeout_ms: int, now_ms: int) -> None:
        self.store = store
        self.timeout_ms = timeout_ms
        self.deadline_ms = now_ms + timeout_ms
        self.session_id = signed_64(store.session_id)
        # The store's own password, so that any endpoint can take the store's session over for the client.
        self.password = bytes.fromhex(store.session_token.partition(":")[2])
        assert len(self.password) == PASSWORD_BYTES, "clients expect a password of this size"
        self.watches = EndpointWatchTable()
        self.connection: ServedConnection | None = None  # the present connection, if any
        self.latest: ServedConnection | None = None  # the present or last one: a request of it may be in progress
        self.taking_over = asyncio.Lock()  # held by a connection that waits until its predecessor is done
        # The newest change that this client can have seen: that of its reads, never of other sessions. A client that
        # reconnects asks for the changes after it.
        self.zxid = 0
        self._ephemerals: set[str] | None = set()

    @property
    def is_usable(self) -> bool:
        return self.store.state is SessionState.CONNECTED

    def touch(self, now_ms: int) -> None:
        """Move the deadline: the client sent something."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self.timeout_ms)

    def accepts(self, password: bytes) -> bool:
        return secrets.compare_digest(self.password, password)

    def saw(self, stat: Stat) -> Stat:
        """Note that the client sees ``stat``, and return it."""
        self.zxid = max(self.zxid, stat.czxid, stat.mzxid, stat.pzxid)
        return stat

    def forget_ephemerals(self) -> None:
        """Note that the session may have ephemerals made at another endpoint, which are not tracked."""
        self._ephemerals = None

    def made_ephemeral(self, path: str) -> None:
        """Note that an ephemeral was created. Beyond the limit the session no longer tracks them."""
        if self._ephemerals is not None:
            self._ephemerals.add(path)
            if len(self._ephemerals) > EPHEMERALS_TRACKED_MAX:
                self._ephemerals = None

    def deleted(self, path: str) -> None:
        """Note that the client deleted a node."""
        if self._ephemerals is not None:
            self._ephemerals.discard(path)

    def ephemerals(self) -> list[str] | None:
        """Return the paths of the ephemerals that the session created and did not delete; None if too many."""
        return None if self._ephemerals is None else sorted(self._ephemerals)
