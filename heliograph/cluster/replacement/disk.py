"""Commands on the disk of a bookie: start again on an empty one, and stop for a move."""

from __future__ import annotations

import time
from functools import partial

from heliograph.cluster.operator.calls import ask_auditor, ask_operator, has_operator
from heliograph.cluster.removal import existing, remove
from heliograph.cluster.replacement.recovery import Progress, RecoveryOutcome, pause, recover


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
    found = ask_auditor(namespace, "recovery_progress", bookie_id)
    if not found["is_alive"]:
        permitted = ask_auditor(namespace, "permit_empty_disk", bookie_id, accept_loss)
        progress(f"{bookie_id} may start on empty directories; {permitted['ledgers']} ledgers name it")
        if existing(bookie_id, namespace) is None:
            progress(f"{bookie_id} has no process: helio up starts it")
        while not found["is_alive"] and time.monotonic() < deadline:
            pause(deadline)
            found = ask_auditor(namespace, "recovery_progress", bookie_id)
        if not found["is_alive"]:
            return RecoveryOutcome(bookie_id, done=False, is_alive=False, ledgers_left=found["ledgers_left"])
        progress(f"{bookie_id} serves again")
    else:
        ask_auditor(namespace, "permit_empty_disk", bookie_id, accept_loss)  # which says why not
    left = max(0.0, deadline - time.monotonic())
    return recover(bookie_id, partial(ask_auditor, namespace), wait_seconds=left, is_replaced=True, progress=progress)


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
        ask_auditor(namespace, "may_stop_bookie", bookie_id)
    if has_operator(namespace):
        ask_operator(namespace, "hold", bookie_id)  # until helio up
    remove([bookie_id], namespace)
