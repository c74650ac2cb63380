"""The status of a cluster without joining its Ray: from its dashboard, the metadata store and the gateway.

The gateway asks the parts that share a process, and all parts where Ray has no dashboard.

Joining Ray registers a job and takes seconds of processor time. The registrations in the metadata store show which
bookies and brokers serve, because each ends with the session of its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from urllib.parse import urlsplit

from heliograph.base.addressing.part_handle import SHARED_PROCESS, has_part_name
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.base.home import ClusterState
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.discovery import GATEWAY, METADATA
from heliograph.client.identity import Identity
from heliograph.cluster import labels
from heliograph.cluster.labels import Node
from heliograph.cluster.naming import PART_CLASSES, kind_of, sort_key
from heliograph.cluster.status.dashboard import Json, RayDashboard
from heliograph.cluster.status.model import ActorStatus, ClusterStatus, explain
from heliograph.cluster.status.registrations import ask_metadata

STORE_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0


def gather_without_ray(
    namespace: str, state: ClusterState | None, *, secret: str | None = None, gateway: GatewayCalls | None = None
) -> ClusterStatus | None:
    """Return the cluster's status; None if it cannot be known without Ray.

    That is so when the cluster was not started from this home, RAY_ADDRESS names another Ray, or its dashboard, the
    metadata store or the gateway does not answer where it was. Without a dashboard, and where parts share a process, it
    takes a gateway that lets this caller ask parts; how often they were restarted is then known to the dashboard only.
    A dashboard that does not answer, as just after a start, is done without as long as all is well.

    Args:
        state: what ``helio up`` recorded.
        secret: the cluster's, which the embedded store asks for; None: that of the environment.
        gateway: of the cluster; None: there is none.
    """
    if state is None or state.namespace != namespace or not state.metadata_url:
        return None
    if os.environ.get("RAY_ADDRESS", state.ray_address) != state.ray_address:
        return None
    try:
        return asyncio.run(_gather(state, secret, gateway))
    except (HeliographError, OSError, TimeoutError):
        return None


async def _gather(state: ClusterState, secret: str | None, gateway: GatewayCalls | None) -> ClusterStatus | None:
    status = ClusterStatus(
        state.namespace,
        state.ray_address,
        state.dashboard_url,
        metadata_url=state.metadata_url,
        gateway_url=state.gateway_url,
    )
    shown = await _actors(state)
    found = dict(shown or {})
    shared = found.pop(SHARED_PROCESS, None)
    if shared is not None or shown is None:
        if gateway is None:
            return None
        found = await _parts(gateway, shared) | found
    if not found:
        return None
    status.actors = sorted(found.values(), key=lambda actor: sort_key(actor.name))
    recorded = {GATEWAY: state.gateway_url, METADATA: urlsplit(state.metadata_url).netloc.rpartition("@")[2]}
    for actor in status.actors:
        actor.address = recorded.get(actor.name, "")
    async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
        await ask_metadata(status, secret, with_topics=True)
    gateways = [actor for actor in status.actors if actor.name == GATEWAY and not actor.note]
    if gateways and not await _listens(state.gateway_url):
        return None  # it may have moved: Ray knows
    explain(status)
    if shown is None and state.dashboard_url and not status.is_healthy:
        return None  # Ray knows why a part does not run
    return status


async def _actors(state: ClusterState) -> dict[str, ActorStatus] | None:
    """Return the actors by name, as the dashboard shows them; None: there is none, or it does not answer."""
    if not state.dashboard_url:
        return None
    dashboard = RayDashboard(state.dashboard_url, state.ray_auth_mode)
    try:
        listed = await asyncio.to_thread(dashboard.actors, state.namespace)
    except ServiceNotReadyError:
        return None
    living = [actor for actor in listed if _is_alive(actor) and _is_part(actor)]
    nodes = await asyncio.to_thread(dashboard.nodes) if any(not _runs(actor) for actor in living) else []
    return {str(actor["name"]): _status_of(actor, nodes) for actor in living}


async def _parts(gateway: GatewayCalls, shared: ActorStatus | None) -> dict[str, ActorStatus]:
    """Return all parts by name, as they answer.

    Args:
        shared: the process that they share, as the dashboard shows it; None: it is not known.

    Raises:
        HeliographError: the gateway does not answer, or refuses the caller.
    """
    identity = Identity.from_environment()

    async def ask(name: str) -> ActorStatus:
        made = ActorStatus(name, kind_of(name), restarts=shared.restarts if shared else None)
        try:
            facts = await gateway.ask_part(name, "part_facts", [], identity)
        except GatewayAwayError:
            raise
        except HeliographError as error:
            made.note = f"does not answer: {error}"
            return made
        made.state, made.pid, made.version = "ALIVE", facts.get("pid"), str(facts["version"])
        return made

    names = await gateway.parts(identity)
    return {made.name: made for made in await asyncio.gather(*map(ask, names))}


def _is_part(actor: Json) -> bool:
    return has_part_name(str(actor["name"])) and actor.get("class_name") in PART_CLASSES


def _is_alive(actor: Json) -> bool:
    return actor.get("state") != "DEAD"


def _runs(actor: Json) -> bool:
    return actor.get("state") == "ALIVE"


def _status_of(actor: Json, nodes: list[Json]) -> ActorStatus:
    name, state = str(actor["name"]), str(actor.get("state"))
    restarts = int(actor.get("num_restarts") or 0)
    made = ActorStatus(name, kind_of(name), state, actor.get("pid"), restarts)
    if not _runs(actor):
        living = [
            Node(str(node.get("node_ip")), node.get("labels") or {}) for node in nodes if node.get("state") == "ALIVE"
        ]
        place = labels.place_of(actor.get("label_selector"), actor.get("required_resources"))
        made.note = labels.why_not_running(place, living, state, restarts)
    return made


async def _listens(url: str) -> bool:
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        return False
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.close()
        return True
    return False
