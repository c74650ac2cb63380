"""Making the copies of a lost bookie again now. Nothing here needs Ray: the caller says how the auditor is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

POLL_SECONDS = 1.0

Progress = Callable[[str], None]
AskAuditor = Callable[..., Any]  # is given the name of a method of the auditor and its arguments


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """The outcome of one call. If it is not ``done``, the cluster continues, and another call waits again."""

    bookie: str
    done: bool
    is_alive: bool
    ledgers_left: int


def recover(
    bookie_id: str,
    ask: AskAuditor,
    *,
    wait_seconds: float,
    is_replaced: bool = False,
    progress: Progress = lambda _: None,
) -> RecoveryOutcome:
    """Make the copies of a lost bookie again now, without the delay for bookies that may come back.

    Args:
        is_replaced: it serves from an empty disk, and lacks all that it held.

    Raises:
        NotFoundError: there is no such bookie.
        ConflictError: too few other bookies could hold the copies; nothing was done.
        ClusterNotFoundError: there is no cluster.
    """
    deadline = time.monotonic() + wait_seconds
    found = ask("recover_bookie", bookie_id, is_replaced)
    reported = -1
    while found["ledgers_left"] and time.monotonic() < deadline:
        if found["ledgers_left"] != reported:
            reported = found["ledgers_left"]
            progress(f"{bookie_id}: {reported} ledgers to be repaired")
        pause(deadline)
        # A lost bookie's ledgers are marked as far as there is room; those of one that serves are marked once.
        method = "recovery_progress" if found["is_alive"] else "recover_bookie"
        found = ask(method, bookie_id)
    left = int(found["ledgers_left"])
    return RecoveryOutcome(bookie_id, done=not left, is_alive=bool(found["is_alive"]), ledgers_left=left)


def pause(deadline: float) -> None:
    """Wait until it is time to ask again, at most until ``deadline`` of the monotonic clock."""
    time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
