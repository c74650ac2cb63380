"""Which bookies are registered now, kept current by watches on the metadata store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from metadata.codec import decode
from metadata.errors import MetadataError, NoNodeError
from metadata.model import BookieRegistration
from metadata.paths import BOOKIES_AVAILABLE, BOOKIES_READONLY
from metadata.store import MetadataStore, SessionState, Watch, WatchEvent

logger = logging.getLogger(__name__)

REFRESH_RETRY_SECONDS = 0.5


class BookieDirectory:
    """Registrations of writable and of read-only bookies, and the last known address of every bookie seen."""

    def __init__(self, store: MetadataStore) -> None:
        self.writable: dict[str, BookieRegistration] = {}
        self.readonly: dict[str, BookieRegistration] = {}
        self._store = store
        self._addresses: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []
        self._watches: list[Watch] = []
        self._refreshing: asyncio.Task[None] | None = None
        self._is_stale = False
        self._is_closed = False

    async def start(self) -> None:
        """Read the registrations and follow their changes from here on.

        Raises:
            ConnectionLossError, SessionExpiredError.
        """
        for path in (BOOKIES_AVAILABLE, BOOKIES_READONLY):
            self._watches.append(await self._store.watch(path, self._on_event))
        self._store.add_session_listener(self._on_session)
        await self._read_all()

    def address_of(self, bookie_id: str) -> str | None:
        """``host:port`` as registered now or last; None for a bookie never seen."""
        return self._addresses.get(bookie_id)

    def is_registered(self, bookie_id: str) -> bool:
        """Whether the bookie is registered now, writable or read-only."""
        return bookie_id in self.writable or bookie_id in self.readonly

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after every change."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Stop following."""
        self._is_closed = True
        for watch in self._watches:
            watch.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing

    def _on_event(self, event: WatchEvent) -> None:
        self._refresh_soon()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:  # events missed while away are not made up for
            self._refresh_soon()

    def _refresh_soon(self) -> None:
        self._is_stale = True
        if not self._is_closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        while self._is_stale and not self._is_closed:
            self._is_stale = False
            try:
                await self._read_all()
            except MetadataError as error:
                if self._store.state is SessionState.LOST:
                    return
                logger.warning("reading the bookie registrations failed: %s", error)
                self._is_stale = True
                await asyncio.sleep(REFRESH_RETRY_SECONDS)

    async def _read_all(self) -> None:
        writable = await self._read(BOOKIES_AVAILABLE)
        readonly = await self._read(BOOKIES_READONLY)
        for registration in (*readonly.values(), *writable.values()):
            self._addresses[registration.bookie_id] = registration.address
        if (writable, readonly) == (self.writable, self.readonly):
            return
        self.writable, self.readonly = writable, readonly
        for listener in self._listeners:
            listener()

    async def _read(self, parent: str) -> dict[str, BookieRegistration]:
        found: dict[str, BookieRegistration] = {}
        try:
            names = await self._store.children(parent)
        except NoNodeError:
            return found
        for name in names:
            with contextlib.suppress(NoNodeError):  # it left in between
                value, _ = await self._store.get(f"{parent}/{name}")
                registration = decode(BookieRegistration, value)
                found[registration.bookie_id] = registration
        return found
