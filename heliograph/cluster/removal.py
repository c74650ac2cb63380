"""Removal of actors, which Ray then does not restart.

Ray's own shutdown hook cannot stop an actor cleanly: the actor's event loop no longer runs when Ray calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
import ray.exceptions

from heliograph.base.addressing.part_handle import (
    SharedPart,
    answers_of,
    described,
    find_part,
    find_shared_process,
    forget,
)
from heliograph.cluster.diagnosis import reason, state_of
from heliograph.cluster.naming import START_ORDER, kind_of

ERASE_TIMEOUT_SECONDS = 60.0
END_TIMEOUT_SECONDS = 3.0  # for the end of processes that have stopped
STOP_TIMEOUT_SECONDS = 8.0  # for an actor's stop(); the last flush of a bookie takes longest


def remove(names: Sequence[str], namespace: str) -> None:
    """Remove parts in reverse starting order: each is asked to stop, then killed, at the latest after 8 s.

    The process that parts share is killed with the last of them.
    """
    for kind in reversed(START_ORDER):
        handles = {name: handle for name in names if kind_of(name) == kind and (handle := existing(name, namespace))}
        answering = [handle for handle in handles.values() if state_of(handle)[0] in ("", "ALIVE")]
        _wait([handle.stop.remote() for handle in answering], STOP_TIMEOUT_SECONDS)
        ends = [_end_of(handle) for handle in answering]
        _wait([call for call in ends if call is not None], END_TIMEOUT_SECONDS)
        for handle in handles.values():
            with contextlib.suppress(ray.exceptions.RayError):
                _kill(handle)
    if (process := find_shared_process(namespace)) is not None and not described(namespace):
        with contextlib.suppress(ray.exceptions.RayError):
            end(process)


def end(handle: Any) -> None:
    """End the actor of a handle; Ray does not start it again. A part of the shared process ends alone.

    Raises:
        RayError: Ray does not answer.
    """
    if (call := _end_of(handle)) is not None:
        _wait([call], END_TIMEOUT_SECONDS)
    _kill(handle)


def _end_of(handle: Any) -> Any | None:
    """Have the process of a part end, and return the call; None: it ends with its actor, or shares its process."""
    if isinstance(handle, SharedPart) or not hasattr(handle, "end_process"):
        return None
    return handle.end_process.remote()


def _kill(handle: Any) -> None:
    """Have Ray end an actor. The process of its part sees soon that it has gone, if it does not know it already."""
    if not isinstance(handle, SharedPart):
        ray.kill(handle)
    else:
        forget(handle.name, handle.namespace)
        handle.process.end.remote(handle.name)


def erase(names: Sequence[str], namespace: str) -> dict[str, str]:
    """Have bookies and etcd members stop and delete their directories, wherever these are.

    Returns:
        the parts whose data may be left, with the reasons.
    """
    calls = {name: handle.erase.remote() for name in names if (handle := existing(name, namespace)) is not None}
    return {name: reason(error) for name, error in answers_of(calls, ERASE_TIMEOUT_SECONDS)[1].items()}


def existing(name: str, namespace: str) -> Any | None:
    """Return the handle of a part, or None."""
    try:
        return find_part(name, namespace)
    except ValueError:
        return None


def _wait(calls: Sequence[Any], seconds: float) -> None:
    if calls:
        ray.wait(list(calls), num_returns=len(calls), timeout=seconds, fetch_local=False)
