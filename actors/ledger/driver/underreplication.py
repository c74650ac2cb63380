"""Marks ledgers that lack copies: tasks for the replication workers."""

from __future__ import annotations

import logging
from collections.abc import Collection

from heliograph.metadata.errors import MetadataError
from heliograph.metadata.recipes.repair_tasks import extend_task
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)


async def mark_underreplicated(
    store: MetadataStore, ledger_id: int, bookies: Collection[str], damaged: Collection[str] = ()
) -> None:
    """Add ``bookies`` to the ledger's task, or create one. A failure is logged only: periodic checks find it later.

    Args:
        damaged: those of ``bookies`` that have copies with a wrong checksum.
    """
    try:
        await extend_task(store, ledger_id, bookies, damaged)
    except MetadataError as error:
        log.warning("ledger %d lacks copies on %s, and no task could be marked: %s", ledger_id, sorted(bookies), error)
