"""Marks ledgers that lack copies: tasks for the replication workers."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from heliograph.base.clock import wall_ms
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from heliograph.metadata.model import UnderReplicatedLedger
from heliograph.metadata.paths import underreplicated
from heliograph.metadata.recipes.update_loop import update
from heliograph.metadata.store import MetadataStore

MARK_ATTEMPTS_MAX = 10  # a task may be finished and created again between two steps (I15)

log = logging.getLogger(__name__)


async def extend_task(store: MetadataStore, ledger_id: int, bookies: Collection[str]) -> bool:
    """Create the ledger's task, or extend it with these bookies.

    Returns:
        False if the task named all of them already.

    Raises:
        MetadataError: the outcome is unknown; calling again is safe.
    """
    assert bookies, "a task names a bookie"
    path = underreplicated(ledger_id)
    value = encode(UnderReplicatedLedger(ledger_id, tuple(sorted(bookies)), wall_ms()))
    is_extended = False

    def extended(task: UnderReplicatedLedger) -> UnderReplicatedLedger | None:
        nonlocal is_extended
        union = tuple(sorted({*task.missing_bookies, *bookies}))
        if union == task.missing_bookies:  # I9
            return None
        assert set(union) > set(task.missing_bookies), "no bookie is taken out of a task"
        is_extended = True
        return replace(task, missing_bookies=union)

    for _ in range(MARK_ATTEMPTS_MAX):
        try:
            await store.create(path, value, parents=True)
        except NodeExistsError:
            pass
        else:
            return True
        try:
            await update(store, path, UnderReplicatedLedger, extended)  # I9
        except NoNodeError:  # a worker just finished that task
            continue
        return is_extended
    raise BadVersionError(f"the task of ledger {ledger_id} was finished and created again {MARK_ATTEMPTS_MAX} times")


async def mark_underreplicated(store: MetadataStore, ledger_id: int, bookies: Collection[str]) -> None:
    """Add ``bookies`` to the ledger's task, or create one. A failure is logged only: periodic checks find it later."""
    try:
        await extend_task(store, ledger_id, bookies)
    except MetadataError as error:
        log.warning("ledger %d lacks copies on %s, and no task could be marked: %s", ledger_id, sorted(bookies), error)
