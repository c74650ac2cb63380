"""Reasons why an actor does not run, with what to do about them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions

from heliograph.base.addressing.part_handle import SHARED_PROCESS, described, part_names, shared_parts
from heliograph.base.errors import HeliographError
from heliograph.client import discovery
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.ray import gcs

STATE_API_TIMEOUT_SECONDS = 5


def reason(error: BaseException) -> str:
    """Return the first line of an actor's error, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    raised: BaseException = cause if isinstance(cause, BaseException) else error
    text = (str(raised).strip() or type(raised).__name__).splitlines()[0]
    return text if isinstance(raised, HeliographError) else f"{type(raised).__name__}: {text}"


def why_not_running(name: str, place: Place, namespace: str) -> str:
    """Return the likely reason why an actor is not ready."""
    found = actor_states(namespace).get(name)
    state, restarts = (None, 0) if found is None else (str(found["state"]), int(found["num_restarts"]))
    return labels.why_not_running(place, living_nodes(), state, restarts)


def living_nodes() -> list[Node]:
    return living(ray.nodes())  # type: ignore[no-untyped-call]


def living(nodes: Sequence[dict[str, Any]]) -> list[Node]:
    return [
        Node(node["NodeManagerAddress"], node["Labels"], node.get("NodeManagerHostname", ""))
        for node in nodes
        if node["Alive"]
    ]


def parts_beside(namespace: str) -> tuple[list[str], list[str]]:
    """Return the names of the actors that run on other living nodes than this process's, and of all others.

    Ray's GCS is asked, because the dashboard of a head that was just started may not answer yet.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    own = ray.get_runtime_context().get_node_id()
    others = {node["NodeID"] for node in nodes if node["Alive"]} - {own}
    found = part_names(namespace)
    there = {name for name, node in gcs.actors_alive() if node in others}
    if SHARED_PROCESS in there:
        there |= shared_parts(namespace)
    return sorted(found & there), sorted(found - there)


def actor_states(namespace: str) -> dict[str, dict[str, Any]]:
    """Return Ray's state of each part, that of its actor or of the shared process; empty without a dashboard."""
    from ray.util.state import list_actors

    address, dashboard = discovery.ray_addresses()
    found: dict[str, dict[str, Any]] = {}
    if not dashboard:
        return found
    with contextlib.suppress(Exception):  # the API raises plain Exceptions; the state is optional here
        for actor in list_actors(
            address=address,  # without it the API looks for the only Ray of the machine
            filters=[("ray_namespace", "=", namespace)],
            detail=True,
            timeout=STATE_API_TIMEOUT_SECONDS,
            raise_on_missing_output=False,
        ):
            if actor.name and (actor.state != "DEAD" or actor.name not in found):
                found[actor.name] = {"state": actor.state, "num_restarts": int(actor.num_restarts or 0)}
    if (process := found.pop(SHARED_PROCESS, None)) is not None:
        found |= dict.fromkeys(described(namespace), process)
    return found
