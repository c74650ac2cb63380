"""The status of a cluster, gathered from Ray, the metadata store and the brokers. What does not answer is left out."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterState
from heliograph.client import discovery
from heliograph.client.admin.admin import Admin
from heliograph.cluster import diagnosis
from heliograph.cluster.parts import kind_of, sort_key
from heliograph.metadata import paths
from heliograph.metadata.codec import decode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, BrokerRegistration, UnderReplicatedLedger
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

ANSWER_TIMEOUT_SECONDS = 5.0
TASKS_READ_AT_ONCE_MAX = 64
# Addresses of bookies and brokers come from their registrations, those of these actors from their idempotent start.
_START_RETURNS_ADDRESS = (discovery.METADATA, discovery.GATEWAY)


@dataclass(slots=True)
class ActorStatus:
    """One actor. ``note`` says what is wrong, or that the actor ``is_leaving`` on request; else it is empty."""

    name: str
    kind: str
    state: str = "UNKNOWN"
    pid: int | None = None
    restarts: int | None = None
    address: str = ""
    note: str = ""
    is_leaving: bool = False


@dataclass(slots=True)
class ClusterStatus:
    """A cluster at one moment. Lists are sorted; ``topics`` counts the topics of public/default. -1 is unknown."""

    namespace: str
    ray_address: str
    dashboard_url: str
    metadata_url: str = ""
    gateway_url: str = ""
    actors: list[ActorStatus] = field(default_factory=list)
    bookies_available: list[str] = field(default_factory=list)
    bookies_readonly: list[str] = field(default_factory=list)
    bookies_draining: list[str] = field(default_factory=list)
    service_urls: list[str] = field(default_factory=list)
    underreplicated_ledgers: int = -1
    ledgers_in_repair: int = -1
    ledgers_moving: int = -1  # ledgers with all copies, some on bookies that are being decommissioned
    topics: int = -1

    @property
    def is_healthy(self) -> bool:
        """Whether every actor serves and no copies are known to be missing."""
        serves = all(actor.is_leaving or not actor.note for actor in self.actors)
        return serves and self.underreplicated_ledgers == 0


def gather(namespace: str, state: ClusterState | None = None, *, secret: str | None = None) -> ClusterStatus:
    """Return the cluster's status. Joins its Ray.

    Args:
        secret: the cluster's, which the embedded store asks for; None: that of the environment.

    Raises:
        ClusterNotFoundError: there is no Ray, or no Heliograph in it.
    """
    names = sorted(discovery.actor_names(namespace), key=sort_key)
    address, dashboard = discovery.ray_addresses()
    status = ClusterStatus(namespace, address, dashboard, metadata_url=state.metadata_url if state else "")
    status.actors = [ActorStatus(name, kind_of(name)) for name in names]
    _ask_ray(status)
    asyncio.run(_ask_cluster(status, secret))
    _explain(status)
    return status


def _ask_ray(status: ClusterStatus) -> None:
    states = diagnosis.actor_states(status.namespace)
    calls: dict[Any, ActorStatus] = {}
    for actor in status.actors:
        known = states.get(actor.name)
        if known is not None:
            actor.state, actor.pid, actor.restarts = known["state"], known["pid"], known["num_restarts"]
            if actor.state != "ALIVE":
                actor.note = diagnosis.why_not_running(actor.name, known["label_selector"], status.namespace)
                continue
        method = "start" if actor.name in _START_RETURNS_ADDRESS else "pid"
        with contextlib.suppress(HeliographError):
            calls[getattr(discovery.actor(actor.name, status.namespace), method).remote()] = actor
    done, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_SECONDS) if calls else ([], [])
    for call in late:
        calls[call].note = f"does not answer within {ANSWER_TIMEOUT_SECONDS:.0f} s"
    for call in done:
        _take_answer(calls[call], call)


def _take_answer(actor: ActorStatus, call: Any) -> None:
    try:
        answer = ray.get(call)
    except ray.exceptions.RayError as error:
        actor.note = diagnosis.reason(error)
        return
    actor.state = "ALIVE"
    if actor.name in _START_RETURNS_ADDRESS:
        actor.address = str(answer)
    else:
        actor.pid = int(answer)


async def _ask_cluster(status: ClusterStatus, secret: str | None) -> None:
    for actor in status.actors:
        is_plain = not status.metadata_url.startswith("embeddeds://")  # the saved URL has the files of TLS
        if actor.name == discovery.METADATA and actor.address and is_plain:
            status.metadata_url = f"embedded://{actor.address}"
        if actor.name == discovery.GATEWAY:
            status.gateway_url = actor.address
    with contextlib.suppress(HeliographError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            await _ask_metadata(status, secret)
    with contextlib.suppress(HeliographError, TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            status.topics = len(await Admin(status.namespace).list_topics())


async def _ask_metadata(status: ClusterStatus, secret: str | None) -> None:
    if not status.metadata_url:
        return
    store = await connect_store(with_secrets(status.metadata_url, secret))
    try:
        status.bookies_available = await store.children(paths.BOOKIES_AVAILABLE)
        status.bookies_readonly = await store.children(paths.BOOKIES_READONLY)
        status.bookies_draining = await store.children(paths.BOOKIES_DRAINING)
        status.ledgers_in_repair = len(await store.children(paths.UNDERREPLICATION_LOCKS))
        await _take_addresses(status, store)
        await _count_tasks(status, store)
    finally:
        await store.close()


async def _count_tasks(status: ClusterStatus, store: MetadataStore) -> None:
    """Count ledgers that miss copies, and apart from them those whose copies only move."""
    names = await store.children(paths.UNDERREPLICATED)
    moving = 0
    leaving = {*status.bookies_draining} & {*status.bookies_available, *status.bookies_readonly}
    if leaving:
        gate = asyncio.Semaphore(TASKS_READ_AT_ONCE_MAX)  # I15
        moving = sum(await asyncio.gather(*(_is_moving(store, name, leaving, gate) for name in names)))
    status.underreplicated_ledgers, status.ledgers_moving = len(names) - moving, moving


async def _is_moving(store: MetadataStore, name: str, leaving: set[str], gate: asyncio.Semaphore) -> bool:
    async with gate:
        try:
            task = (await read(store, f"{paths.UNDERREPLICATED}/{name}", UnderReplicatedLedger)).record
        except NoNodeError:
            return True  # done since the list was read
    return not task.is_abandoned and leaving.issuperset(task.missing_bookies)


async def _take_addresses(status: ClusterStatus, store: MetadataStore) -> None:
    addresses = {}
    for parent in (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY):
        for name in await store.children(parent):
            with contextlib.suppress(NoNodeError):
                addresses[name] = decode(BookieRegistration, (await store.get(f"{parent}/{name}"))[0]).address
    for name in await store.children(paths.BROKERS_AVAILABLE):
        with contextlib.suppress(NoNodeError):
            value, _ = await store.get(paths.broker_available(name))
            broker = decode(BrokerRegistration, value)
            address = broker.service_url or broker.service_url_tls
            addresses[broker.actor_name] = address
            status.service_urls.append(address)
    for actor in status.actors:
        actor.address = actor.address or addresses.get(actor.name, "")


def _explain(status: ClusterStatus) -> None:
    """Add notes to actors that run but are not registered."""
    if status.underreplicated_ledgers < 0:
        return  # the store did not answer: registrations are unknown
    for actor in status.actors:
        if actor.note:
            continue
        if actor.name in status.bookies_draining and actor.address:
            actor.note, actor.is_leaving = "being decommissioned", True
        elif actor.name in status.bookies_readonly:
            actor.note = "read-only: its disk is nearly full"
        elif actor.kind in ("bookie", "broker") and not actor.address:
            actor.note = "runs, but is not registered in metadata yet"
