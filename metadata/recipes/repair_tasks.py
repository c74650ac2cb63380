"""Creates and extends the tasks of ledgers that lack good copies, and notes lost entries in them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from heliograph.base.clock import wall_ms
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from heliograph.metadata.model import Versioned
from heliograph.metadata.paths import underreplicated
from heliograph.metadata.recipes.update_loop import update
from heliograph.metadata.store import MetadataStore

MARK_ATTEMPTS_MAX = 10  # a task may be finished and created again between two steps (I15)


async def extend_task(
    store: MetadataStore,
    ledger_id: int,
    bookies: Collection[str],
    damaged: Collection[str] = (),
    *,
    is_abandoned: bool = False,
) -> bool:
    """Create the ledger's task, or extend it with these bookies.

    Args:
        damaged: those of ``bookies`` that have copies with a wrong checksum.
        is_abandoned: the ledger is to be recovered if it is open and its last segment names one of the bookies.

    Returns:
        False if the task already named all of them.

    Raises:
        MetadataError: the outcome is unknown; calling again is safe.
    """
    assert bookies, "a task names a bookie"
    assert set(damaged) <= set(bookies), "a damaged copy is a missing one"
    path = underreplicated(ledger_id)
    made = UnderReplicatedLedger(
        ledger_id, tuple(sorted(bookies)), wall_ms(), is_abandoned, damaged_bookies=tuple(sorted(damaged))
    )
    is_extended = False

    def extended(task: UnderReplicatedLedger) -> UnderReplicatedLedger | None:
        nonlocal is_extended
        union = replace(
            task,
            missing_bookies=tuple(sorted({*task.missing_bookies, *bookies})),
            damaged_bookies=tuple(sorted({*task.damaged_bookies, *damaged})),
            is_abandoned=task.is_abandoned or is_abandoned,
        )
        if union == task:  # I9
            return None
        assert set(union.missing_bookies) >= set(task.missing_bookies), "no bookie is taken out of a task"
        is_extended = True
        return union

    for _ in range(MARK_ATTEMPTS_MAX):
        try:
            await store.create(path, encode(made), parents=True)
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


async def note_lost_entries(store: MetadataStore, task: Versioned[UnderReplicatedLedger], lost_entries: int) -> None:
    """Record in a task the number of entries of which the latest attempt found no good copy.

    A task that changed or was finished meanwhile stays as it is: its next attempt records the number again.

    Raises:
        MetadataError: the outcome is unknown; calling again is safe.
    """
    assert lost_entries >= 0, "entries are counted"
    if task.record.lost_entries == lost_entries:
        return
    path = underreplicated(task.record.ledger_id)
    try:
        await store.set(path, encode(replace(task.record, lost_entries=lost_entries)), task.version)
    except (BadVersionError, NoNodeError):
        return


log = logging.getLogger(__name__)


async def mark_underreplicated(
    store: MetadataStore, ledger_id: int, bookies: Collection[str], damaged: Collection[str] = ()
) -> None:
    """Add ``bookies`` to the ledger's task, or create one. A failure is logged only: periodic checks find it later.

    Args:
        damaged: the ``bookies`` that have copies with a wrong checksum.
    """
    try:
        await extend_task(store, ledger_id, bookies, damaged)
    except MetadataError as error:
        log.warning("ledger %d lacks copies on %s, and no task could be marked: %s", ledger_id, sorted(bookies), error)
