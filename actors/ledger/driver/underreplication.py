"""Leaving a task for the replication workers: this ledger lacks copies."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import replace

from metadata.codec import encode
from metadata.errors import MetadataError, NodeExistsError, NoNodeError
from metadata.model import UnderReplicatedLedger
from metadata.paths import underreplicated
from metadata.store import MetadataStore
from metadata.update_loop import update

MARK_ATTEMPTS_MAX = 5  # of making a task or adding to it

logger = logging.getLogger(__name__)


async def mark_underreplicated(store: MetadataStore, ledger_id: int, bookies: Collection[str]) -> None:
    """Add ``bookies`` to the ledger's task, made when there is none. A failure is logged: periodic checks remain."""
    missing = tuple(sorted(bookies))
    task = UnderReplicatedLedger(ledger_id, missing, marked_ms=time.time_ns() // 1_000_000)
    path = underreplicated(ledger_id)

    def merged(found: UnderReplicatedLedger) -> UnderReplicatedLedger | None:
        union = tuple(sorted({*found.missing_bookies, *missing}))
        if union == found.missing_bookies:  # I9
            return None
        return replace(found, missing_bookies=union)

    why = f"the task came and went {MARK_ATTEMPTS_MAX} times"
    for _ in range(MARK_ATTEMPTS_MAX):
        try:
            try:
                await store.create(path, encode(task), parents=True)
            except NodeExistsError:
                await update(store, path, UnderReplicatedLedger, merged)
        except NoNodeError:  # a worker finished that one at this moment
            continue
        except MetadataError as error:
            why = str(error)
            break
        return
    logger.warning("ledger %d lacks copies on %s, and no task could be left: %s", ledger_id, missing, why)
