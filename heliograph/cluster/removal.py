"""Ending actors for good.

Ray's own shutdown hook is of no use here: when it runs, the actor's event loop stands still already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions

from heliograph.cluster.diagnosis import actor_states
from heliograph.cluster.parts import START_ORDER, kind_of

STOP_TIMEOUT_SECONDS = 8.0  # for an actor's stop(), a bookie's last flush being the longest


def remove(names: Sequence[str], namespace: str) -> None:
    """End these actors, the last started first: each is asked to stop, and ended by force then or after 8 s."""
    states = actor_states(namespace)
    for kind in reversed(START_ORDER):
        handles = {name: handle for name in names if kind_of(name) == kind and (handle := existing(name, namespace))}
        stops = [handle.stop.remote() for name, handle in handles.items() if _can_answer(states.get(name))]
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=STOP_TIMEOUT_SECONDS, fetch_local=False)
        for handle in handles.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(handle, no_restart=True)


def existing(name: str, namespace: str) -> Any | None:
    """The handle of a named actor, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def _can_answer(state: dict[str, Any] | None) -> bool:
    return state is None or state["state"] == "ALIVE"
