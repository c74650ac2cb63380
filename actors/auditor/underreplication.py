"""The tasks of replication workers, kept in metadata.

A ledger that lacks copies has one persistent node, and one ephemeral lock while a worker repairs it. Marking is
idempotent: a second mark with the same bookies changes nothing. A task is deleted at the version that the worker read,
so that a bookie reported meanwhile keeps the task (I9).
"""

from __future__ import annotations

from collections.abc import Collection

from heliograph.metadata import paths
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError
from heliograph.metadata.model import Versioned
from heliograph.metadata.recipes.lock import claim
from heliograph.metadata.recipes.repair_tasks import extend_task, note_lost_entries
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore


class UnderReplication:
    """The tasks, read and changed in one session."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def mark(
        self,
        ledger_id: int,
        missing_bookies: Collection[str],
        damaged: Collection[str] = (),
        *,
        is_abandoned: bool = False,
    ) -> bool:
        """Create the ledger's task, or extend it with these bookies.

        Args:
            damaged: the bookies that have copies with a wrong checksum.
            is_abandoned: the ledger is to be recovered if it is open and its last segment names one of the bookies.

        Returns:
            False if the task named all of them already.

        Raises:
            MetadataError: the outcome is unknown; marking again is safe.
        """
        return await extend_task(self._store, ledger_id, missing_bookies, damaged, is_abandoned=is_abandoned)

    async def tasks(self) -> list[int]:
        """Return the ids of the ledgers that have a task, ascending."""
        return sorted(int(name) for name in await self._store.children(paths.UNDERREPLICATED))

    async def task(self, ledger_id: int) -> Versioned[UnderReplicatedLedger] | None:
        """Return the task of a ledger with its version, or None."""
        try:
            return await read(self._store, paths.underreplicated(ledger_id), UnderReplicatedLedger)
        except NoNodeError:
            return None

    async def lock(self, ledger_id: int) -> bool:
        """Take the ledger's lock for this session. Return False if another session holds it."""
        return await claim(self._store, paths.underreplication_lock(ledger_id))

    async def release(self, ledger_id: int) -> None:
        """Give the lock back; with a lost session it is gone by itself."""
        try:
            await self._store.delete(paths.underreplication_lock(ledger_id))
        except NoNodeError:
            return

    async def finish(self, ledger_id: int, version: int) -> bool:
        """Delete the task if it still has ``version``.

        Returns:
            False if bookies were added meanwhile: the task remains, to be done again.
        """
        try:
            await self._store.delete(paths.underreplicated(ledger_id), version)  # I9
        except NoNodeError:
            return True
        except BadVersionError:
            return False
        return True

    async def note_lost(self, task: Versioned[UnderReplicatedLedger], lost_entries: int) -> None:
        """Record in a task how many entries the latest attempt found no good copy of."""
        await note_lost_entries(self._store, task, lost_entries)

    async def is_enabled(self) -> bool:
        """Whether auditing and copying are allowed now."""
        return await self._store.exists(paths.UNDERREPLICATION_DISABLED) is None

    async def in_repair(self) -> set[int]:
        """Return the ids of the ledgers that a worker repairs now, or that garbage collection examines."""
        return {int(name) for name in await self._store.children(paths.UNDERREPLICATION_LOCKS)}

    async def are_scrubs_enabled(self) -> bool:
        return await self._store.exists(paths.SCRUB_DISABLED) is None

    async def set_scrubs_enabled(self, enabled: bool) -> None:
        """Allow or forbid scrubs on all bookies, which notice within 5 s. Idempotent."""
        await self._set(paths.SCRUB_DISABLED, enabled)

    async def set_enabled(self, enabled: bool) -> None:
        """Allow or forbid auditing and copying in the whole cluster. Idempotent."""
        await self._set(paths.UNDERREPLICATION_DISABLED, enabled)

    async def _set(self, path: str, enabled: bool) -> None:
        try:
            if enabled:
                await self._store.delete(path)
            else:
                await self._store.create(path, parents=True)
        except (NoNodeError, NodeExistsError):
            return
