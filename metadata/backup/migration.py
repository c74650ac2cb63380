"""Moving a stopped cluster's metadata from one store into another."""

from __future__ import annotations

from pathlib import Path

from heliograph.base.errors import ConflictError
from heliograph.metadata.backup.file import BackupSummary
from heliograph.metadata.backup.restore import fill, require_empty
from heliograph.metadata.backup.snapshot import digest_of, snapshot
from heliograph.metadata.recipes.occupancy import registered
from heliograph.metadata.store import MetadataStore


async def migrate(source: MetadataStore, target: MetadataStore, scratch: Path) -> tuple[BackupSummary, list[str]]:
    """Copy every node that lives without a session into an empty store, and compare both stores.

    Ledger ids continue after the last one, and the source is not changed.

    Args:
        scratch: a file that does not exist, in which the copy is kept meanwhile; the caller deletes it.

    Returns:
        The summary of the copy, and the nodes of other programs whose counters could not be advanced.

    Raises:
        ConflictError: a part of the cluster or another client is running, the target is not empty, or the source
            changed.
        MetadataError: a store did not answer; what was written to the target has to be removed.
        OSError: the file cannot be written.
    """
    await source.sync()
    if live := await registered(source):
        raise ConflictError(f"the cluster runs: {', '.join(sorted(live))} are registered. Stop it first: helio down")
    summary, ephemerals = await snapshot(source, scratch)
    if ephemerals:
        raise ConflictError(f"clients of the store still live: {', '.join(ephemerals)}. Stop them, or let them expire")
    await require_empty(target, summary.instance_id)
    behind = await fill(scratch, summary, target, summary.last_ledger_id, summary.restored)
    if await digest_of(source) != (summary.nodes, summary.digest):
        raise ConflictError("the source changed while it was copied: stop its users, empty the target, begin again")
    return summary, behind
