"""Reasons why an actor does not run, with what to do about them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions

from heliograph.base.addressing.part_handle import SHARED_PROCESS, SharedPart, find_part, part_names, shared_parts
from heliograph.base.errors import ConnectionLostError, HeliographError, RequestTimeoutError, ServiceNotReadyError
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.ray import gcs

_OF_OTHERS = (ConnectionLossError, ConnectionLostError, RequestTimeoutError, ServiceNotReadyError, SessionExpiredError)


def reason(error: BaseException) -> str:
    """Return the first line of an actor's error, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    raised: BaseException = cause if isinstance(cause, BaseException) else error
    text = (str(raised).strip() or type(raised).__name__).splitlines()[0]
    return text if isinstance(raised, HeliographError | TimeoutError) else f"{type(raised).__name__}: {text}"


def is_passing(error: BaseException) -> bool:
    """Return whether a start failed because of its Ray node or of another part, so that the next one may succeed."""
    return isinstance(error, ray.exceptions.ActorUnavailableError) or isinstance(
        getattr(error, "cause", None), _OF_OTHERS
    )


def why_not_running(name: str, place: Place, namespace: str) -> str:
    """Return the likely reason why a part is not ready."""
    try:
        state, restarts = state_of(find_part(name, namespace))
    except ValueError:
        state, restarts = "", 0
    return labels.why_not_running(place, living_nodes(), state or None, restarts)


def state_of(handle: Any) -> tuple[str, int]:
    """Return Ray's word for the state of a part's actor, and how often it was started again; empty if it says none."""
    with contextlib.suppress(ray.exceptions.RayError, ConnectionError, RuntimeError):
        return gcs.actor_state(actor_id(handle))
    return "", 0


def actor_id(handle: Any) -> str:
    """Return the id of the actor that a part has, or shares with others."""
    return gcs.actor_id(handle.process if isinstance(handle, SharedPart) else handle)


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

    The answer is from Ray's GCS: the dashboard of a head that was just started may not serve yet.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    own = ray.get_runtime_context().get_node_id()
    others = {node["NodeID"] for node in nodes if node["Alive"]} - {own}
    found = part_names(namespace)
    there = {name for name, node in gcs.actors_alive() if node in others}
    if SHARED_PROCESS in there:
        there |= shared_parts(namespace)
    return sorted(found & there), sorted(found - there)
