"""The list of tasks for replication workers, kept in metadata.

One persistent node for each ledger that misses copies, and one ephemeral lock while a worker repairs it. Marking is
idempotent: a second auditor, or the same one again, changes nothing. A task is finished with the version that the
worker read, so that a failure reported meanwhile keeps it alive.  # I9
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from metadata import paths
from metadata.claim import claim
from metadata.codec import encode
from metadata.errors import BadVersionError, NodeExistsError, NoNodeError
from metadata.model import UnderReplicatedLedger, Versioned
from metadata.store import MetadataStore
from metadata.update_loop import read, update

MARK_ATTEMPTS_MAX = 10  # a task may be finished and made anew between two steps


class UnderReplication:
    """The tasks, as one session sees and changes them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def mark(self, ledger_id: int, missing_bookies: Collection[str]) -> bool:
        """Make sure that a task says at least this much.

        Returns:
            True when it was made or extended, False when it said so already.

        Raises:
            MetadataError: the outcome is unknown; marking again is safe.
        """
        path = paths.underreplicated(ledger_id)
        record = UnderReplicatedLedger(ledger_id, tuple(sorted(missing_bookies)), time.time_ns() // 1_000_000)
        extended = False

        def merge(current: UnderReplicatedLedger) -> UnderReplicatedLedger | None:
            nonlocal extended
            together = tuple(sorted({*current.missing_bookies, *missing_bookies}))
            if together == current.missing_bookies:
                return None
            extended = True
            return replace(current, missing_bookies=together)

        for _ in range(MARK_ATTEMPTS_MAX):
            try:
                await self._store.create(path, encode(record))
            except NodeExistsError:
                pass
            else:
                return True
            try:
                await update(self._store, path, UnderReplicatedLedger, merge)  # I9
            except NoNodeError:
                continue
            return extended
        raise BadVersionError(f"task of ledger {ledger_id} came and went {MARK_ATTEMPTS_MAX} times")

    async def tasks(self) -> list[int]:
        """Ids of all ledgers that have a task, ascending."""
        return sorted(int(name) for name in await self._store.children(paths.UNDERREPLICATED))

    async def task(self, ledger_id: int) -> Versioned[UnderReplicatedLedger] | None:
        """The task of a ledger with its version, or None."""
        try:
            return await read(self._store, paths.underreplicated(ledger_id), UnderReplicatedLedger)
        except NoNodeError:
            return None

    async def lock(self, ledger_id: int) -> bool:
        """Take the ledger's lock for this session; False when another holds it."""
        return await claim(self._store, paths.underreplication_lock(ledger_id))

    async def release(self, ledger_id: int) -> None:
        """Give the lock back; with a lost session it is gone by itself."""
        try:
            await self._store.delete(paths.underreplication_lock(ledger_id))
        except NoNodeError:
            return

    async def finish(self, ledger_id: int, version: int) -> bool:
        """Delete the task if it still is as it was read at ``version``.

        Returns:
            False when more was reported meanwhile: the task stands, and is to be done again.
        """
        try:
            await self._store.delete(paths.underreplicated(ledger_id), version)  # I9
        except NoNodeError:
            return True
        except BadVersionError:
            return False
        return True

    async def is_enabled(self) -> bool:
        """Whether auditing and copying are allowed now."""
        return await self._store.exists(paths.UNDERREPLICATION_DISABLED) is None

    async def set_enabled(self, enabled: bool) -> None:
        """Allow or forbid auditing and copying, for everybody. Idempotent."""
        try:
            if enabled:
                await self._store.delete(paths.UNDERREPLICATION_DISABLED)
            else:
                await self._store.create(paths.UNDERREPLICATION_DISABLED, parents=True)
        except (NoNodeError, NodeExistsError):
            return
