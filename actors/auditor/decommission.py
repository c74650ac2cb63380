"""Decommission of a bookie, alive or dead: its data is copied to others, then it leaves the cluster for good.

The request is an empty node in metadata, so that it outlives the process that made it. While the node exists, the
bookie registers itself as read-only, writers replace it, and audits mark every ledger that names it. The bookie serves
reads until its data is copied. Once no ledger names it and it is stopped, its cookie and the node are deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from heliograph.actors.auditor.auditor import Auditor, in_steps
from heliograph.actors.auditor.checks import ledgers_on
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.placements.index import PlacementIndex
from heliograph.actors.auditor.widest_ensemble import require_writable, widest_ensemble
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.base.errors import ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.metadata import paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Decommissioning:
    """The progress of a decommission. ``ledgers_left`` ledgers name the bookie, and ``ledgers_open`` of them are open.

    ``is_read_only`` is true once the bookie has turned read-only, and for a dead one.
    """

    bookie: str
    is_alive: bool
    is_read_only: bool
    ledgers_left: int
    ledgers_open: int

    @property
    def is_drained(self) -> bool:
        """Whether no ledger needs the bookie, and no ledger will get it."""
        return self.is_read_only and self.ledgers_left == 0


class Decommission:
    """The steps of a decommission. Each may be repeated.

    Args:
        config: has the ensemble size of namespaces that do not set their own.
    """

    def __init__(self, store: MetadataStore, auditor: Auditor, config: AuditorConfig) -> None:
        self._store = store
        self._auditor = auditor
        self._membership = auditor.membership
        self._default_ensemble_size = config.ensemble_size
        self._reads_at_once_max = config.reads_at_once_max

    async def begin(self, bookie_id: str) -> dict[str, Any]:
        """Request the decommission, unless too few bookies would be left.

        Returns:
            The fields of ``Decommissioning``, with ``is_drained``.

        Raises:
            NotFoundError: there is no such bookie, and no ledger names it.
            ConflictError: too few writable bookies would be left, or it is down with all copies of some entries.
            MetadataError: the outcome is unknown; call again.
        """
        async with self._auditor.placements() as index:
            if await self._store.exists(paths.bookie_draining(bookie_id)) is None:
                await self._require_known(bookie_id, index.named)
                await self._require_copies(bookie_id, index)
                widest = await widest_ensemble(self._store, self._default_ensemble_size, self._reads_at_once_max)
                await require_writable(self._store, [bookie_id], max(widest, index.ensemble_size_max))
                with contextlib.suppress(NodeExistsError):  # it was requested meanwhile
                    await self._store.create(paths.bookie_draining(bookie_id), parents=True)
            return await self._progress(bookie_id, index)

    async def progress(self, bookie_id: str) -> dict[str, Any]:
        """Return the progress, as ``begin`` does.

        Raises:
            NotFoundError: it was not requested.
            MetadataError: the store failed.
        """
        await self._require_requested(bookie_id)
        async with self._auditor.placements() as index:
            return await self._progress(bookie_id, index)

    async def cancel(self, bookie_id: str) -> None:
        """Keep the bookie in the cluster. Copies that were made are kept.

        Raises:
            NotFoundError: its decommission was not requested.
        """
        try:
            await self._store.delete(paths.bookie_draining(bookie_id))
        except NoNodeError:
            raise _not_requested(bookie_id) from None

    async def finish(self, bookie_id: str) -> None:
        """Forget a bookie that is drained and stopped.

        Raises:
            NotFoundError: its decommission was not requested.
            ConflictError: ledgers still name it.
            ServiceNotReadyError: it is still registered; stop it and call again.
        """
        found = await self.progress(bookie_id)
        if found["ledgers_left"]:
            raise ConflictError(f"{found['ledgers_left']} ledgers name {bookie_id} still", field="bookie")
        if found["is_alive"]:
            raise ServiceNotReadyError(f"{bookie_id} is registered still: stop it first", field="bookie")
        records = (
            paths.bookie_rack,
            paths.bookie_start_failure,
            paths.bookie_replacement,
            paths.bookie_cookie,
            paths.bookie_draining,  # the request last
        )
        for path in (path_of(bookie_id) for path_of in records):
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path)

    async def _progress(self, bookie_id: str, index: PlacementIndex) -> dict[str, Any]:
        left = unclosed = 0
        async for ledgers, not_closed in in_steps(index.tally(bookie_id)):
            left, unclosed = left + ledgers, unclosed + not_closed
        is_alive = bookie_id in await self._membership.alive()
        is_read_only = not is_alive or bookie_id in await self._store.children(paths.BOOKIES_READONLY)
        found = Decommissioning(bookie_id, is_alive, is_read_only, left, unclosed)
        return {**asdict(found), "is_drained": found.is_drained}

    async def _require_known(self, bookie_id: str, named: Collection[str]) -> None:
        known: Collection[str] = await self._membership.alive()
        if bookie_id in known or bookie_id in named:
            return
        if await self._store.exists(paths.bookie_cookie(bookie_id)) is None:
            raise NotFoundError(f"there is no bookie {bookie_id}", field="bookie", limit=", ".join(sorted(known)))

    async def _require_copies(self, bookie_id: str, index: PlacementIndex) -> None:
        """Check that a dead bookie's entries are on others, too; a living bookie gives its data itself."""
        alive = await self._membership.alive()
        if bookie_id in alive:
            return
        down = index.named - alive
        last = []
        async for some in in_steps(index.on([bookie_id])):
            last += [one for one in ledgers_on(some, down) if not one.copies_left]
        if last:
            named = {name for one in last for name in one.missing_bookies if not is_vacancy(name)}
            others = ", ".join(sorted(named - {bookie_id}))
            raise ConflictError(
                f"{bookie_id} is down, and no other bookie that serves has entries of {len(last)} ledgers, such as "
                f"{last[0].ledger_id}: start it{f', or {others},' if others else ''} first, or delete "
                f"what they belong to (helio ledgers describe {last[0].ledger_id})",
                field="bookie",
            )

    async def _require_requested(self, bookie_id: str) -> None:
        if await self._store.exists(paths.bookie_draining(bookie_id)) is None:
            raise _not_requested(bookie_id)


def _not_requested(bookie_id: str) -> NotFoundError:
    return NotFoundError(f"{bookie_id} is not being decommissioned", field="bookie")
