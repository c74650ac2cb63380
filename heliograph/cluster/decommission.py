"""Decommission of a bookie of a running cluster: the auditor moves its data away, then its actor is removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import Advice, ClusterNotFoundError, HeliographError, NotFoundError, ResourceError
from heliograph.client import discovery
from heliograph.client.admin.admin import unwrapped
from heliograph.cluster.operator.calls import ask_operator, has_operator
from heliograph.cluster.removal import existing, remove

CALL_TIMEOUT_SECONDS = 60.0  # the auditor reads every ledger's record before it answers
POLL_SECONDS = 1.0
LEAVE_SECONDS = 60.0  # time for a stopped bookie's registration to go; a killed one has it until its session ends

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DecommissionOutcome:
    """The outcome of one call. If it is not ``done``, the auditor continues, and another call waits again."""

    bookie: str
    done: bool
    ledgers_left: int
    data_deleted: bool


def decommission(
    bookie_id: str, namespace: str, *, wait_seconds: float, delete_data: bool, progress: Progress = lambda _: None
) -> DecommissionOutcome:
    """Empty a bookie, stop it and forget it; it may be dead already. An interrupted call can be repeated.

    Args:
        wait_seconds: longest wait for its data to be moved.
        delete_data: the bookie also deletes its directories, as it must before another is started there.

    Raises:
        NotFoundError: there is no such bookie.
        ConflictError: too few bookies would remain; nothing was done.
        ResourceError: its directories could not be deleted; it is stopped and not yet forgotten.
        ClusterNotFoundError: there is no cluster, or it has no auditor.
    """
    found = ask(namespace, "decommission", bookie_id)
    deadline = time.monotonic() + wait_seconds
    reported = ""
    while not found["is_drained"] and time.monotonic() < deadline:
        reported = _report(found, reported, progress)
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        found = ask(namespace, "decommission_progress", bookie_id)
    if not found["is_drained"]:
        return DecommissionOutcome(bookie_id, done=False, ledgers_left=found["ledgers_left"], data_deleted=False)
    progress(f"no ledger names {bookie_id} any more")
    deleted = delete_data and _erase(bookie_id, namespace)
    if has_operator(namespace):
        ask_operator(namespace, "forget", bookie_id)  # else it would start the bookie again
    remove([bookie_id], namespace)
    _finish(bookie_id, namespace)
    return DecommissionOutcome(bookie_id, done=True, ledgers_left=0, data_deleted=deleted)


def _report(found: dict[str, Any], reported: str, progress: Progress) -> str:
    """Report the progress if it differs from what was ``reported`` last, and return it."""
    line = f"{found['bookie']}: {found['ledgers_left']} ledgers to be moved, {found['ledgers_open']} of them open"
    if not found["is_read_only"]:
        line = f"{found['bookie']}: waiting until it accepts no more entries"
    if line != reported:
        progress(line)
    return line


def _erase(bookie_id: str, namespace: str) -> bool:
    """Have the bookie stop and delete its directories. Return False if it has no process that could."""
    handle = existing(bookie_id, namespace)
    if handle is None:
        return False
    try:
        ray.get(handle.erase.remote(), timeout=CALL_TIMEOUT_SECONDS)
    except ray.exceptions.RayError as error:
        raise ResourceError(
            f"the data of {bookie_id} cannot be deleted: {unwrapped(error, bookie_id)}", field="delete_data"
        ) from error
    return True


def _finish(bookie_id: str, namespace: str) -> None:
    deadline = time.monotonic() + LEAVE_SECONDS
    while True:
        try:
            ask(namespace, "finish_decommission", bookie_id)
        except HeliographError as error:
            if error.advice is Advice.STOP or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
        else:
            return


def ask(namespace: str, method: str, *arguments: Any) -> Any:
    """Call a method of the auditor.

    Raises:
        NotFoundError: the cluster has no auditor, or there is nothing of that name.
        ClusterNotFoundError: there is no cluster.
        HeliographError: as the method raises.
    """
    try:
        auditor = discovery.actor(discovery.AUDITOR, namespace)
    except ClusterNotFoundError as error:
        if discovery.is_attached() and discovery.actor_names(namespace):
            raise NotFoundError("this cluster has no auditor, which moves and repairs data", field="auditor") from error
        raise
    try:
        return ray.get(getattr(auditor, method).remote(*arguments), timeout=CALL_TIMEOUT_SECONDS)
    except ray.exceptions.RayError as error:
        raise unwrapped(error, discovery.AUDITOR) from error
