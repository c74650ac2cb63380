"""One client's session with the endpoint, which outlives its connections, on one session with the store."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from metadata.endpoint.jute import signed_64
from metadata.endpoint.limits import EPHEMERALS_TRACKED_MAX
from metadata.endpoint.replies import PASSWORD_BYTES
from metadata.endpoint.watchboard import Watchboard
from metadata.store import MetadataStore, SessionState, Stat

if TYPE_CHECKING:
    from metadata.endpoint.connection import Connection


class WireSession:
    """A session. Its id is that of the store's session, so that ``ephemeralOwner`` names it."""

    def __init__(self, store: MetadataStore, timeout_ms: int, now_ms: int) -> None:
        self.store = store
        self.timeout_ms = timeout_ms
        self.deadline_ms = now_ms + timeout_ms
        self.session_id = signed_64(store.session_id)
        self.password = secrets.token_bytes(PASSWORD_BYTES)
        self.board = Watchboard()
        self.connection: Connection | None = None  # the one that is served, if any
        self.latest: Connection | None = None  # the same, or the last one: a request of it may still be in hand
        self.taking_over = asyncio.Lock()  # held by a connection that waits for its predecessor to be done
        # The newest change that this client can have seen. Taken from what it read, never from other sessions: a
        # client that comes back asks what happened after it.
        self.zxid = 0
        self._ephemerals: set[str] | None = set()

    @property
    def is_usable(self) -> bool:
        """Is the store's session connected?"""
        return self.store.state is SessionState.CONNECTED

    def touch(self, now_ms: int) -> None:
        """The client was heard of."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self.timeout_ms)

    def accepts(self, password: bytes) -> bool:
        """Is this the session's password?"""
        return secrets.compare_digest(self.password, password)

    def saw(self, stat: Stat) -> Stat:
        """The client is about to be shown ``stat``."""
        self.zxid = max(self.zxid, stat.czxid, stat.mzxid, stat.pzxid)
        return stat

    def made_ephemeral(self, path: str) -> None:
        """An ephemeral was made. Beyond the limit the session no longer knows which ones it has."""
        if self._ephemerals is not None:
            self._ephemerals.add(path)
            if len(self._ephemerals) > EPHEMERALS_TRACKED_MAX:
                self._ephemerals = None

    def deleted(self, path: str) -> None:
        """The client deleted a node."""
        if self._ephemerals is not None:
            self._ephemerals.discard(path)

    def ephemerals(self) -> list[str] | None:
        """Paths of the ephemerals that the session made and did not delete itself; None: too many to say."""
        return None if self._ephemerals is None else sorted(self._ephemerals)
