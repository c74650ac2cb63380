"""Commands on the disk of a bookie: start again on an empty one, make lost copies again, and stop for a move."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.cluster.decommission import ask
from heliograph.cluster.operator.calls import ask_operator, has_operator
from heliograph.cluster.removal import existing, remove

POLL_SECONDS = 1.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """The outcome of one call. If it is not ``done``, the cluster continues, and another call waits again."""

    bookie: str
    done: bool
    is_alive: bool
    ledgers_left: int


def replace(
    bookie_id: str, namespace: str, *, accept_loss: bool, wait_seconds: float, progress: Progress = lambda _: None
) -> RecoveryOutcome:
    """Let a bookie whose disk died start on empty directories under its name, and make its copies again.

    Args:
        accept_loss: also if it may hold the last copies of entries, which are then lost.
        wait_seconds: longest wait for the bookie to start and for its copies.

    Raises:
        NotFoundError: there is no such bookie.
        ConflictError: it serves, is being decommissioned, or may hold last copies; nothing was done.
        ClusterNotFoundError: there is no cluster.
    """
    deadline = time.monotonic() + wait_seconds
    found = ask(namespace, "recovery_progress", bookie_id)
    if not found["is_alive"]:
        permitted = ask(namespace, "permit_empty_disk", bookie_id, accept_loss)
        progress(f"{bookie_id} may start on empty directories; {permitted['ledgers']} ledgers name it")
        if existing(bookie_id, namespace) is None:
            progress(f"{bookie_id} has no process: helio up starts it")
        while not found["is_alive"] and time.monotonic() < deadline:
            _pause(deadline)
            found = ask(namespace, "recovery_progress", bookie_id)
        if not found["is_alive"]:
            return RecoveryOutcome(bookie_id, done=False, is_alive=False, ledgers_left=found["ledgers_left"])
        progress(f"{bookie_id} serves again")
    else:
        ask(namespace, "permit_empty_disk", bookie_id, accept_loss)  # which says why not
    return _wait(bookie_id, namespace, deadline, progress, is_replaced=True)


def recover(
    bookie_id: str, namespace: str, *, wait_seconds: float, progress: Progress = lambda _: None
) -> RecoveryOutcome:
    """Make the copies of a lost bookie again now, without the delay for bookies that may come back.

    Raises:
        NotFoundError: there is no such bookie.
        ConflictError: too few other bookies could hold the copies; nothing was done.
        ClusterNotFoundError: there is no cluster.
    """
    return _wait(bookie_id, namespace, time.monotonic() + wait_seconds, progress)


def stop_for_move(bookie_id: str, namespace: str, *, force: bool) -> None:
    """End a bookie's process in good order, so that its directories can be moved. ``helio up`` starts it again.

    Args:
        force: also if too few bookies would be left for the widest ensemble; topics then wait for it.

    Raises:
        NotFoundError: there is no such bookie that serves.
        ConflictError: too few writable bookies would be left; nothing was done.
        ClusterNotFoundError: there is no cluster.
    """
    if not force:
        ask(namespace, "may_stop_bookie", bookie_id)
    if has_operator(namespace):
        ask_operator(namespace, "hold", bookie_id)  # until helio up
    remove([bookie_id], namespace)


def _wait(
    bookie_id: str, namespace: str, deadline: float, progress: Progress, *, is_replaced: bool = False
) -> RecoveryOutcome:
    found = ask(namespace, "recover_bookie", bookie_id, is_replaced)
    reported = -1
    while found["ledgers_left"] and time.monotonic() < deadline:
        if found["ledgers_left"] != reported:
            reported = found["ledgers_left"]
            progress(f"{bookie_id}: {reported} ledgers to be repaired")
        _pause(deadline)
        # A lost bookie's ledgers are marked as far as there is room; those of one that serves are marked once.
        method = "recovery_progress" if found["is_alive"] else "recover_bookie"
        found = ask(namespace, method, bookie_id)
    left = int(found["ledgers_left"])
    return RecoveryOutcome(bookie_id, done=not left, is_alive=bool(found["is_alive"]), ledgers_left=left)


def _pause(deadline: float) -> None:
    time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
