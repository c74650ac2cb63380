"""The ownership of bundles: the owner is the broker whose session holds the bundle's ephemeral node.

A broker serves what it owns, as far as it knows. A silent store proves nothing: the open topics are served on, and the
bookies tell this broker, by their fence, when another one has taken a topic over (I13). When the store answers again
and the session is over, the broker registers in its new session and takes the bundles back that nobody owns; the
topics of such a bundle are checked for what another broker may have done meanwhile. Bundles of other brokers are
dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from heliograph.actors.broker.namespaces.bundles import Bundle, candidate, has_bundle, namespace_of_bundle
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.base.backoff import Backoff
from heliograph.base.completion import Shared
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, ConnectionLossError, NodeExistsError, NoNodeError
from heliograph.metadata.model import BrokerRegistration, BundleOwner, NamespacePolicies
from heliograph.metadata.parents import create_parents
from heliograph.metadata.recipes.lock import claim
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import (
    Check,
    Create,
    Delete,
    EventType,
    MetadataStore,
    SessionState,
    Set,
    Stat,
    Watch,
    WatchEvent,
    is_connected,
)
from heliograph.protocol.topic_name import TopicName

K = TypeVar("K")
V = TypeVar("V")

ANSWERS_MAX = 10_000  # of one kind; the one that was noted or asked for least lately is forgotten (I15)


class LastKnown(Generic[K, V]):
    """The latest answers of one kind. They may be old: the broker corrects a lookup by an old answer."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, V] = OrderedDict()

    def note(self, key: K, answer: V) -> V:
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return answer

    def get(self, key: K) -> V | None:
        """Return the latest answer, None if there is none."""
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)


ROUNDS_MAX = 5  # of finding an owner while bundles change hands
RECLAIMS_AT_ONCE_MAX = 16  # bundles that are taken back in a new session at the same time
RECLAIM_PAUSE_MS = 100  # after an attempt that failed; doubles
RECLAIM_PAUSE_MS_MAX = 2_000

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
        on_lost: called when all bundles are lost: the store was closed, or another process registered as this broker.
        on_reclaimed: checks the topics of a bundle that this broker has taken back in a new session.
    """

    def __init__(self, store: MetadataStore, registration: BrokerRegistration, locate: Locate) -> None:
        self.registration = replace(registration, session_token=store.session_token)
        self.choose: Choose = choose_by_hash
        self.on_released: Callable[[str], None] = lambda path: None
        self.on_lost: Callable[[], None] = lambda: None
        self.on_reclaimed: Callable[[str], Awaitable[None]] = _nothing_to_check
        self._store = store
        self._locate = locate
        self._owned: set[str] = set()
        self._leaving: set[str] = set()  # still owned; their topics are being closed
        self._splitting: set[str] = set()  # owned; about to be replaced by their halves
        self._uncertain: set[str] = set()  # owned; not yet found or made in the present session
        self._session_id = store.session_id  # in which this broker registered
        self._bundles: LastKnown[TopicName, Bundle] = LastKnown()
        self._owners: LastKnown[str, ServingBroker] = LastKnown()
        self._current: set[str] = set()  # bundles whose owner in ``_owners`` no event has contradicted  # I15
        self._changes = 0  # of bundles that were told; an owner that was read meanwhile may be old
        # After a failover all clients of a broker ask at once: what they need of a bundle is done once.  # I15
        self._taking: Shared[tuple[Bundle, bool], ServingBroker | None] = Shared()
        self._reading: Shared[tuple[str, int], tuple[bytes | None, Stat]] = Shared()  # one after each change
        self._is_lost = False
        self._watch: Watch | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def owned(self) -> frozenset[str]:
        return frozenset(self._owned)

    @property
    def is_lost(self) -> bool:
        """Whether this broker owns nothing any more, and takes nothing."""
        return self._is_lost

    @property
    def is_certain(self) -> bool:
        """Whether the metadata store answers, as far as is known; else answers about owners may be old."""
        return is_connected(self._store)

    @property
    def silent_seconds(self) -> float:
        """For how long the metadata store has not answered; small while it answers."""
        return self._store.silent_seconds

    async def start(self) -> None:
        """Register this broker, and end the session of a predecessor with the same id, which frees its bundles.

        Raises:
            ConnectionLossError, SessionExpiredError: the store cannot be used; nothing may be served.
        """
        self._store.add_session_listener(self._session_changed)
        await self._register(ends_predecessor=True)
        self._watch = await self._store.watch(paths.BUNDLES, self._bundle_changed)

    async def stop(self) -> None:
        """Release all bundles and the registration. The caller closes the session; that does not call ``on_lost``."""
        self._store.remove_session_listener(self._session_changed)
        if self._watch is not None:
            self._watch.cancel()
        if self._checking is not None:
            self._checking.cancel()
        owned, self._owned = list(self._owned), set()
        if self._is_lost or not self.is_certain:
            return  # the nodes end with the session
        for path in (*owned, paths.broker_available(self.registration.broker_id)):
            with contextlib.suppress(HeliographError):
                await self._store.delete(path)

    def owns(self, path: str) -> bool:
        """Whether this broker may serve the bundle now (I13)."""
        return path in self._owned and not self._is_lost

    def is_in_doubt(self, path: str) -> bool:
        """Whether another broker may own a bundle of this one, as far as the metadata store has told."""
        return self._store.is_in_doubt or path in self._uncertain or path not in self._owned

    @property
    def knows(self) -> bool:
        """Whether nothing that this broker owns is in doubt, and the store answers."""
        return self.is_certain and not self._uncertain and not self._store.is_in_doubt

    def admits(self, path: str) -> bool:
        """Whether topics of the bundle may be loaded here now."""
        return self.owns(path) and path not in self._leaving and path not in self._uncertain

    async def brokers(self) -> list[BrokerRegistration]:
        found = []
        for name in await self._store.children(paths.BROKERS_AVAILABLE):
            with contextlib.suppress(NoNodeError):
                value, _ = await self._store.get(f"{paths.BROKERS_AVAILABLE}/{name}")
                found.append(codec.decode(BrokerRegistration, value))
        return found

    async def resolve(self, topic: TopicName, *, authoritative: bool = False) -> ServingBroker:
        """Return the broker that serves a topic's bundle. Take the bundle if it has no owner and this broker is chosen.

        While the store is silent the answer is the owner that was known last.

        Args:
            authoritative: another broker, or the operator, chose this broker.

        Raises:
            NamespaceNotFoundError.
            ServiceNotReadyError: the bundle is changing its owner, or this broker's session is lost; try again.
        """
        for _ in range(ROUNDS_MAX):
            if self._is_lost:
                raise ServiceNotReadyError("this broker serves nothing any more")
            known_bundle = None if self.is_certain else self._bundles.get(topic)
            bundle = known_bundle or self._bundles.note(topic, await self._locate(topic))
            path = bundle.path
            if path in self._leaving:
                break
            if path in self._owned:
                return self._us()
            known = self._owners.get(path) if path in self._current or not self.is_certain else None
            if known is not None:
                return known
            changes = self._changes
            try:
                with needs_session():
                    value, stat = await self._reading.run((path, changes), partial(self._store.get, path))
            except NoNodeError:
                with needs_session():
                    found = await self._taken(bundle, authoritative)
                if found is None:
                    continue
                return found
            if (
                stat.ephemeral_owner == self._store.session_id and not self._is_lost
            ):  # our create, the reply to which was lost
                self._owned.add(path)
                continue
            owner = codec.decode(BundleOwner, value)
            if owner.broker_id == self.registration.broker_id:
                break  # of a predecessor, whose session is ending
            if self._watch is not None and self.is_certain and changes == self._changes:
                if len(self._current) >= ANSWERS_MAX:
                    self._current.clear()
                self._current.add(path)
            return self._owners.note(path, _serving(owner))
        raise ServiceNotReadyError(f"the bundle of {topic} is changing its owner, try again")

    async def take(self, bundle: Bundle) -> None:
        """Take a bundle that has no owner.

        Raises:
            ServiceNotReadyError: another broker was first, or the bundles changed; try again.
        """
        with needs_session():
            await self._taken(bundle, authoritative=True)
        if not self.owns(bundle.path):
            raise ServiceNotReadyError(f"{bundle.path} is changing its owner, try again")

    def begin_release(self, path: str) -> bool:
        """Stop loading topics of a bundle, so that loaded topics can be closed. Return False if it is not owned."""
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
            raise ServiceNotReadyError("this broker serves nothing any more")
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

    async def _taken(self, bundle: Bundle, authoritative: bool) -> ServingBroker | None:
        """Take a bundle or name its broker, once for all who ask meanwhile."""
        work = partial(self._take_or_name, bundle, authoritative)
        return await self._taking.run((bundle, authoritative), work)

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
        self._changes += 1
        self._current.clear()
        if state is SessionState.LOST:
            self._lose()
        elif state is SessionState.CONNECTED:
            if self._store.session_id != self._session_id:
                self._uncertain = set(self._owned)
            if self._checking is not None:
                self._checking.cancel()
            self._checking = asyncio.get_running_loop().create_task(self._confirm(), name="ownership")

    def _lose(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True  # I13
        self._owned.clear()
        self._uncertain.clear()
        self.on_lost()

    async def _register(self, *, ends_predecessor: bool) -> None:
        """Create the registration of this broker in the present session.

        Args:
            ends_predecessor: end the session of another process that is registered as this broker.

        Raises:
            ServiceNotReadyError: another process is registered as this broker.
            ConnectionLossError, SessionExpiredError.
        """
        broker_id, store = self.registration.broker_id, self._store
        path = paths.broker_available(broker_id)
        for _ in range(ROUNDS_MAX):
            session_id = store.session_id
            ours = replace(self.registration, session_token=store.session_token)
            if ends_predecessor:
                await end_predecessor(store, broker_id)
            if await claim(store, path, codec.encode(ours), parents=True):
                break
        else:
            raise ServiceNotReadyError(f"another process is registered as {broker_id}")
        self.registration, self._session_id, self._is_lost = ours, session_id, False

    async def _confirm(self) -> None:
        """Find out what this broker owns, after the store was out of reach, until that is known."""
        pauses = Backoff(RECLAIM_PAUSE_MS, RECLAIM_PAUSE_MS_MAX)
        while True:
            try:
                if self._store.session_id != self._session_id:
                    # A process that is registered now is a successor: this one ended its predecessor's session.
                    await self._register(ends_predecessor=False)
                await self._check_owned()
                if not self._uncertain:
                    return
            except ServiceNotReadyError as error:
                log.error("broker %s gives its topics up: %s", self.registration.broker_id, error)
                self._lose()
            except HeliographError as error:
                log.warning("the bundles of broker %s are not known yet: %s", self.registration.broker_id, error)
            await asyncio.sleep(pauses.pause())

    def _bundle_changed(self, event: WatchEvent) -> None:
        self._changes += 1
        self._current.discard(event.path)
        if event.type is EventType.DELETED and event.path in self._owned and event.path not in self._splitting:
            self._drop(event.path)

    async def _check_owned(self) -> None:
        """Check each owned bundle, because events may have been missed while the store was out of reach. Bundles of an
        earlier session are taken back if they have no owner.

        Raises:
            ConnectionLossError, SessionExpiredError: the ownership of some bundles is not known.
        """
        at_once = asyncio.Semaphore(RECLAIMS_AT_ONCE_MAX)  # I15

        async def check(path: str) -> None:
            async with at_once:
                await self._check(path)

        outcomes = await asyncio.gather(*map(check, self._owned - self._splitting), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _check(self, path: str) -> None:
        stat = await self._store.exists(path)
        was_uncertain = path in self._uncertain
        if stat is None and was_uncertain and path not in self._leaving and await self._reclaim(path):
            stat = await self._store.exists(path)
        if path not in self._owned:
            return
        if stat is None or stat.ephemeral_owner != self._store.session_id:
            self._drop(path)
        elif was_uncertain:
            await self.on_reclaimed(path)
            self._uncertain.discard(path)

    async def _reclaim(self, path: str) -> bool:
        """Take a bundle of an earlier session back. Return whether it has an owner now, which may be another broker."""
        namespace_path, name = namespace_of_bundle(path)
        try:
            namespace = await read(self._store, namespace_path, NamespacePolicies)
            if not has_bundle(namespace.record, name):  # it was split meanwhile
                return False
            # Decided by the store: one session creates the node (I9), and the ranges are those of the record.
            create = Create(path, codec.encode(self._record()), ephemeral=True)
            await self._store.multi([Check(namespace_path, namespace.version), create])
        except NodeExistsError:
            return True
        except NoNodeError:  # the namespace is gone
            return False
        except BadVersionError:
            raise ConnectionLossError(f"the policies of {path} changed meanwhile") from None
        return True

    def _drop(self, path: str) -> None:
        self._owned.discard(path)
        self._uncertain.discard(path)
        self.on_released(path)


async def _nothing_to_check(path: str) -> None:
    """Accept a bundle that was taken back."""


def _serving(broker: BundleOwner | BrokerRegistration) -> ServingBroker:
    return ServingBroker(
        broker.broker_id, broker.service_url, broker.actor_name, broker.service_url_tls, listeners=broker.listeners
    )
