"""The ownership of bundles: the owner is the broker whose session holds the bundle's ephemeral node.

A broker serves only what it owns. From the moment that its session is lost it owns nothing, which is before the store
lets another broker own its bundles (I13). If it does not notice in time, fencing refuses its writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from heliograph.actors.broker.namespaces.bundles import Bundle, candidate
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, ConnectionLossError, NodeExistsError, NoNodeError
from heliograph.metadata.model import BrokerRegistration, BundleOwner
from heliograph.metadata.parents import create_parents
from heliograph.metadata.store import (
    Check,
    Create,
    Delete,
    EventType,
    MetadataStore,
    SessionState,
    Set,
    Watch,
    WatchEvent,
)
from heliograph.protocol.topic_name import TopicName

ROUNDS_MAX = 5  # of finding an owner while bundles change hands

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingBroker:
    """The broker of a bundle. ``is_assigned``: it does not own the bundle yet, and takes it when it is told to."""

    broker_id: str
    service_url: str
    actor_name: str
    service_url_tls: str = ""
    is_us: bool = False
    is_assigned: bool = False
    listeners: str = ""


Locate = Callable[[TopicName], Awaitable[Bundle]]
Choose = Callable[[str, Mapping[str, BrokerRegistration]], Awaitable[str | None]]


async def choose_by_hash(path: str, live: Mapping[str, BrokerRegistration]) -> str | None:
    """Choose an owner for a bundle without a leader: by hash, among the brokers that do not drain if there are any."""
    willing = [name for name, broker in live.items() if not broker.is_draining]
    return candidate(path, willing or live)


async def end_predecessor(store: MetadataStore, broker_id: str) -> None:
    """End the session of another process that is registered as this broker, if there is one: its bundles are free then.

    The caller is that process's successor, which Ray starts when the process has ended.

    Raises:
        ConnectionLossError, SessionExpiredError: the store cannot be used; the session may have ended.
    """
    with contextlib.suppress(NoNodeError):
        value, stat = await store.get(paths.broker_available(broker_id))
        if stat.ephemeral_owner != store.session_id:
            await store.end_session(codec.decode(BrokerRegistration, value).session_token)


class Ownership:
    """The bundles of this broker, and the owners of other bundles. All calls on one event loop.

    Args:
        locate: finds the bundle of a topic as metadata has it now.

    Attributes:
        choose: chooses an owner for a bundle that has none.
        on_released: called with the path of a bundle that this broker owns no longer, while its session goes on.
        on_lost: called when the session is lost, and with it all bundles.
    """

    def __init__(self, store: MetadataStore, registration: BrokerRegistration, locate: Locate) -> None:
        self.registration = replace(registration, session_token=store.session_token)
        self.choose: Choose = choose_by_hash
        self.on_released: Callable[[str], None] = lambda path: None
        self.on_lost: Callable[[], None] = lambda: None
        self._store = store
        self._locate = locate
        self._owned: set[str] = set()
        self._leaving: set[str] = set()  # still owned; their topics are being closed
        self._splitting: set[str] = set()  # owned; about to be replaced by their halves
        self._is_lost = False
        self._watch: Watch | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def owned(self) -> frozenset[str]:
        """Paths of the bundles that this broker owns now."""
        return frozenset(self._owned)

    @property
    def is_lost(self) -> bool:
        """Whether the session is lost; this broker owns nothing any more."""
        return self._is_lost

    async def start(self) -> None:
        """Register this broker, and end the session of a predecessor with the same id, which frees its bundles.

        Raises:
            ConnectionLossError, SessionExpiredError: the store cannot be used; nothing may be served.
        """
        path = paths.broker_available(self.registration.broker_id)
        self._store.add_session_listener(self._session_changed)
        for _ in range(ROUNDS_MAX):
            await end_predecessor(self._store, self.registration.broker_id)
            with contextlib.suppress(NodeExistsError):
                await self._store.create(path, codec.encode(self.registration), ephemeral=True, parents=True)
                break
        else:
            raise ServiceNotReadyError(f"another process keeps registering as {self.registration.broker_id}")
        self._watch = await self._store.watch(paths.BUNDLES, self._bundle_changed)

    async def stop(self) -> None:
        """Release all bundles and the registration. The caller closes the session; that does not call ``on_lost``."""
        self._store.remove_session_listener(self._session_changed)
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

    def admits(self, path: str) -> bool:
        """Whether topics of the bundle may be loaded here now."""
        return self.owns(path) and path not in self._leaving

    async def brokers(self) -> list[BrokerRegistration]:
        """Return all live brokers."""
        found = []
        for name in await self._store.children(paths.BROKERS_AVAILABLE):
            with contextlib.suppress(NoNodeError):
                value, _ = await self._store.get(f"{paths.BROKERS_AVAILABLE}/{name}")
                found.append(codec.decode(BrokerRegistration, value))
        return found

    async def resolve(self, topic: TopicName, *, authoritative: bool = False) -> ServingBroker:
        """Return the broker that serves a topic's bundle. Take the bundle if it has no owner and this broker is chosen.

        Args:
            authoritative: another broker, or the operator, chose this broker.

        Raises:
            NamespaceNotFoundError.
            ServiceNotReadyError: the bundle is changing its owner, or this broker's session is lost; try again.
        """
        for _ in range(ROUNDS_MAX):
            if self._is_lost:
                raise ServiceNotReadyError("this broker lost its session")
            bundle = await self._locate(topic)
            path = bundle.path
            if path in self._leaving:
                break
            if path in self._owned:
                return self._us()
            try:
                with needs_session():
                    value, stat = await self._store.get(path)
            except NoNodeError:
                with needs_session():
                    found = await self._take_or_name(bundle, authoritative)
                if found is None:
                    continue
                return found
            if stat.ephemeral_owner == self._store.session_id:  # our create, the reply to which was lost
                self._owned.add(path)
                continue
            owner = codec.decode(BundleOwner, value)
            if owner.broker_id == self.registration.broker_id:
                break  # of a predecessor, whose session is ending
            return _serving(owner)
        raise ServiceNotReadyError(f"the bundle of {topic} is changing its owner, try again")

    async def take(self, bundle: Bundle) -> None:
        """Take a bundle that has no owner.

        Raises:
            ServiceNotReadyError: another broker was first, or the bundles changed; try again.
        """
        with needs_session():
            await self._take_or_name(bundle, authoritative=True)
        if not self.owns(bundle.path):
            raise ServiceNotReadyError(f"{bundle.path} is changing its owner, try again")

    def begin_release(self, path: str) -> bool:
        """Stop loading topics of a bundle, so that the loaded ones can be closed. Return False if it is not owned."""
        if not self.admits(path):
            return False
        self._leaving.add(path)
        return True

    async def release(self, path: str) -> None:
        """Release a bundle after its topics were closed."""
        try:
            if path in self._owned:
                self._owned.discard(path)
                with contextlib.suppress(NoNodeError):
                    await self._store.delete(path)
        finally:
            self._leaving.discard(path)

    async def split(self, path: str, halves: tuple[str, str], namespace: Set) -> bool:
        """Replace a bundle by its two halves in one write. This broker owns both halves then.

        Args:
            namespace: the write of the namespace's record that splits the bundle, with the version that it replaces.

        Returns:
            False if the record changed meanwhile; nothing was done then.

        Raises:
            ServiceNotReadyError: the bundle is not owned by this broker, or the outcome is not known.
        """
        if not self.admits(path) or path in self._splitting:
            raise ServiceNotReadyError(f"{path} is not served here, or is being changed, try again")
        value = codec.encode(self._record())
        creates = [Create(half, value, ephemeral=True) for half in halves]
        self._splitting.add(path)
        try:
            with needs_session():
                await self._store.multi([namespace, *creates, Delete(path)])  # I9
        except BadVersionError:
            return False
        except (ConnectionLossError, NodeExistsError, NoNodeError) as error:
            self._splitting.discard(path)
            await self._check_owned()
            raise ServiceNotReadyError(f"{path} may be split or not, try again: {error}") from error
        finally:
            self._splitting.discard(path)
        if self._is_lost:
            raise ServiceNotReadyError("this broker lost its session")
        self._owned.discard(path)
        self._owned.update(halves)
        return True

    async def set_draining(self, is_draining: bool) -> None:
        """Publish whether this broker takes further bundles.

        Raises:
            ServiceNotReadyError: the session is over.
        """
        self.registration = replace(self.registration, is_draining=is_draining)
        with needs_session():
            await self._store.set(paths.broker_available(self.registration.broker_id), codec.encode(self.registration))

    async def _take_or_name(self, bundle: Bundle, authoritative: bool) -> ServingBroker | None:
        live = {broker.broker_id: broker for broker in await self.brokers()}
        chosen = self.registration.broker_id if authoritative else await self.choose(bundle.path, live)
        if chosen is not None and chosen != self.registration.broker_id:
            return replace(_serving(live[chosen]), is_assigned=True)
        # The record must still be the one the bundle was read from, so that bundles that overlap never have two owners.
        check = Check(bundle.namespace_path, bundle.version)
        create = Create(bundle.path, codec.encode(self._record()), ephemeral=True)
        try:
            try:
                await self._store.multi([check, create])
            except NoNodeError:
                await create_parents(self._store, bundle.path)
                await self._store.multi([check, create])
        except (NodeExistsError, BadVersionError, NoNodeError):
            return None
        if self._is_lost:
            return None
        self._owned.add(bundle.path)
        return self._us()

    def _record(self) -> BundleOwner:
        ours = self.registration
        return BundleOwner(
            ours.broker_id, ours.service_url, ours.actor_name, ours.service_url_tls, listeners=ours.listeners
        )

    def _us(self) -> ServingBroker:
        return replace(_serving(self.registration), is_us=True)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST and not self._is_lost:
            self._is_lost = True  # I13
            self._owned.clear()
            self.on_lost()
        elif state is SessionState.CONNECTED and self._owned:
            self._checking = asyncio.get_running_loop().create_task(self._check_owned())

    def _bundle_changed(self, event: WatchEvent) -> None:
        if event.type is EventType.DELETED and event.path in self._owned and event.path not in self._splitting:
            self._owned.discard(event.path)
            self.on_released(event.path)

    async def _check_owned(self) -> None:
        """Check each owned bundle, because events may have been missed while the store was out of reach."""
        for path in self._owned - self._splitting:
            try:
                stat = await self._store.exists(path)
            except HeliographError as error:
                log.warning("the ownership of %s could not be checked: %s", path, error)
                return
            if (stat is None or stat.ephemeral_owner != self._store.session_id) and path in self._owned:
                self._owned.discard(path)
                self.on_released(path)


def _serving(broker: BundleOwner | BrokerRegistration) -> ServingBroker:
    return ServingBroker(
        broker.broker_id, broker.service_url, broker.actor_name, broker.service_url_tls, listeners=broker.listeners
    )
