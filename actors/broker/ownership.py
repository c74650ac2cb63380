"""Who serves a bundle of topics: the broker whose session holds the bundle's ephemeral node.

A broker serves only what it owns. When its session is lost, it owns nothing from that moment on, which is before the
store lets anybody else own it (I13); should it not notice in time, fencing keeps its writes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from actors.broker.bundles import candidate
from actors.broker.session_guard import needs_session
from heliograph.errors import HeliographError, ServiceNotReadyError
from metadata import codec, paths
from metadata.errors import NodeExistsError, NoNodeError
from metadata.model import BrokerRegistration, BundleOwner
from metadata.store import EventType, MetadataStore, SessionState, Watch, WatchEvent

ROUNDS_MAX = 5  # of finding an owner while bundles change hands

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a bundle is served. ``is_assigned``: nobody owns it yet, this broker should, and has to be told so."""

    broker_id: str
    service_url: str
    actor_name: str
    is_us: bool = False
    is_assigned: bool = False


class Ownership:
    """The bundles of this broker, and the way to those of others. All calls on one event loop.

    Attributes:
        on_released: called with the path of a bundle that is no longer ours, while our session goes on.
        on_lost: called when the session is lost and everything with it.
    """

    def __init__(self, store: MetadataStore, registration: BrokerRegistration) -> None:
        self.registration = replace(registration, session_token=store.session_token)
        self.on_released: Callable[[str], None] = lambda path: None
        self.on_lost: Callable[[], None] = lambda: None
        self._store = store
        self._owned: set[str] = set()
        self._is_lost = False
        self._watch: Watch | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def owned(self) -> frozenset[str]:
        """Paths of the bundles that this broker owns now."""
        return frozenset(self._owned)

    @property
    def is_lost(self) -> bool:
        """Whether the session is over, and this broker with it."""
        return self._is_lost

    async def start(self) -> None:
        """Register this broker. A predecessor of the same id is ended at once: its bundles are free from then on.

        Raises:
            ConnectionLossError, SessionExpiredError: the store cannot be used; nothing may be served.
        """
        path = paths.broker_available(self.registration.broker_id)
        self._store.add_session_listener(self._session_changed)
        for _ in range(ROUNDS_MAX):
            with contextlib.suppress(NoNodeError):
                value, stat = await self._store.get(path)
                if stat.ephemeral_owner != self._store.session_id:
                    await self._store.end_session(codec.decode(BrokerRegistration, value).session_token)
            with contextlib.suppress(NodeExistsError):
                await self._store.create(path, codec.encode(self.registration), ephemeral=True, parents=True)
                break
        else:
            raise ServiceNotReadyError(f"another process keeps registering as {self.registration.broker_id}")
        self._watch = await self._store.watch(paths.BUNDLES, self._bundle_changed)

    async def stop(self) -> None:
        """Give everything back. The session itself is the caller's to close."""
        if self._watch is not None:
            self._watch.cancel()
        if self._checking is not None:
            self._checking.cancel()
        owned, self._owned = list(self._owned), set()
        if self._is_lost:
            return
        for path in (*owned, paths.broker_available(self.registration.broker_id)):
            with contextlib.suppress(HeliographError):
                await self._store.delete(path)

    def owns(self, path: str) -> bool:
        """Whether this broker may serve the bundle now (I13)."""
        return path in self._owned and not self._is_lost

    async def brokers(self) -> list[BrokerRegistration]:
        """Every live broker."""
        found = []
        for name in await self._store.children(paths.BROKERS_AVAILABLE):
            with contextlib.suppress(NoNodeError):
                value, _ = await self._store.get(f"{paths.BROKERS_AVAILABLE}/{name}")
                found.append(codec.decode(BrokerRegistration, value))
        return found

    async def resolve(self, path: str, *, authoritative: bool = False) -> Owner:
        """Who serves a bundle. It becomes ours when nobody owns it and we are the candidate, or were assigned it.

        Args:
            authoritative: another broker, or the operator, decided that it should be us.

        Raises:
            ServiceNotReadyError: it changes hands right now, or our session is lost; ask again.
        """
        for _ in range(ROUNDS_MAX):
            if self._is_lost:
                raise ServiceNotReadyError("this broker lost its session")
            if path in self._owned:
                return self._us()
            try:
                with needs_session():
                    value, stat = await self._store.get(path)
            except NoNodeError:
                with needs_session():
                    found = await self._take_or_name(path, authoritative)
                if found is None:
                    continue
                return found
            if stat.ephemeral_owner == self._store.session_id:  # our create, whose reply was lost
                self._owned.add(path)
                continue
            owner = codec.decode(BundleOwner, value)
            if owner.broker_id == self.registration.broker_id:
                break  # a predecessor's, about to go
            return Owner(owner.broker_id, owner.service_url, owner.actor_name)
        raise ServiceNotReadyError(f"{path} is changing hands, ask again")

    async def release(self, path: str) -> None:
        """Give one bundle up, after its topics were closed."""
        if path in self._owned:
            self._owned.discard(path)
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path)

    async def _take_or_name(self, path: str, authoritative: bool) -> Owner | None:
        live = {broker.broker_id: broker for broker in await self.brokers()}
        chosen = self.registration.broker_id if authoritative else candidate(path, live)
        if chosen is not None and chosen != self.registration.broker_id:
            broker = live[chosen]
            return Owner(broker.broker_id, broker.service_url, broker.actor_name, is_assigned=True)
        ours = self.registration
        record = BundleOwner(ours.broker_id, ours.service_url, ours.actor_name)
        try:
            await self._store.create(path, codec.encode(record), ephemeral=True, parents=True)
        except NodeExistsError:
            return None
        if self._is_lost:
            return None
        self._owned.add(path)
        return self._us()

    def _us(self) -> Owner:
        ours = self.registration
        return Owner(ours.broker_id, ours.service_url, ours.actor_name, is_us=True)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST and not self._is_lost:
            self._is_lost = True  # I13
            self._owned.clear()
            self.on_lost()
        elif state is SessionState.CONNECTED and self._owned:
            self._checking = asyncio.get_running_loop().create_task(self._check_owned())

    def _bundle_changed(self, event: WatchEvent) -> None:
        if event.type is EventType.DELETED and event.path in self._owned:
            self._owned.discard(event.path)
            self.on_released(event.path)

    async def _check_owned(self) -> None:
        """Events may have been missed while the store was out of reach."""
        for path in list(self._owned):
            try:
                stat = await self._store.exists(path)
            except HeliographError as error:
                log.warning("cannot check %s: %s", path, error)
                return
            if (stat is None or stat.ephemeral_owner != self._store.session_id) and path in self._owned:
                self._owned.discard(path)
                self.on_released(path)
