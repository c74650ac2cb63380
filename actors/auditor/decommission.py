"""Taking a bookie out of the cluster for good, live or dead: its data moves to others first.

The wish is an empty node in metadata, so that it outlives whoever made it. While it stands the bookie registers itself
as read-only, writers replace it, and audits mark every ledger that names it, to be copied away from it; it serves as a
source until then. Once no ledger names it and it has gone, its cookie is deleted with the wish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from actors.auditor.checks import ledgers_on, named_bookies
from actors.auditor.ledger_scan import scan_ledgers
from actors.auditor.membership import Membership
from actors.auditor.widest_ensemble import widest_ensemble
from heliograph.errors import ConflictError, NotFoundError, ServiceNotReadyError
from metadata import paths
from metadata.errors import NodeExistsError, NoNodeError
from metadata.model import LedgerMetadata
from metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Decommissioning:
    """How far it is. ``ledgers_left`` name the bookie still; of these, ``ledgers_open`` are being written to.

    ``is_read_only`` says that the bookie has heard of it; a dead one counts as such.
    """

    bookie: str
    is_alive: bool
    is_read_only: bool
    ledgers_left: int
    ledgers_open: int

    @property
    def is_drained(self) -> bool:
        """Whether the bookie holds nothing that anybody would ask it for, and will get nothing more."""
        return self.is_read_only and self.ledgers_left == 0


class Decommission:
    """The steps, each of which can be taken again."""

    def __init__(self, store: MetadataStore, membership: Membership, reads_at_once_max: int) -> None:
        self._store = store
        self._membership = membership
        self._reads_at_once_max = reads_at_once_max

    async def begin(self, bookie_id: str) -> dict[str, Any]:
        """Wish it, unless the others could not hold what there is.

        Returns:
            The fields of ``Decommissioning``, with ``is_drained``.

        Raises:
            NotFoundError: there is no such bookie, and no ledger names one.
            ConflictError: too few writable bookies would be left.
            MetadataError: the outcome is unknown; call again.
        """
        ledgers = await scan_ledgers(self._store, self._reads_at_once_max)
        await self._require_known(bookie_id, ledgers)
        leaving = {bookie_id, *await self._membership.draining()}
        staying = set(await self._store.children(paths.BOOKIES_AVAILABLE)) - leaving
        needed = max(
            [await widest_ensemble(self._store, self._reads_at_once_max), *(ledger.ensemble_size for ledger in ledgers)]
        )
        if len(staying) < needed:
            raise ConflictError(
                f"{bookie_id} cannot go: {len(staying)} writable bookies would be left, and there are topics with an "
                f"ensemble of {needed}: start another bookie first, or lower ensemble_size",
                field="bookie",
                limit=f"at least {needed} others",
            )
        with contextlib.suppress(NodeExistsError):  # wished before
            await self._store.create(paths.bookie_draining(bookie_id), parents=True)
        return await self._progress(bookie_id, ledgers)

    async def progress(self, bookie_id: str) -> dict[str, Any]:
        """How far it is, as ``begin`` returns it.

        Raises:
            NotFoundError: nobody wished it.
            MetadataError: the store failed.
        """
        await self._require_wished(bookie_id)
        return await self._progress(bookie_id, await scan_ledgers(self._store, self._reads_at_once_max))

    async def cancel(self, bookie_id: str) -> None:
        """Let the bookie stay; what was moved stays where it is.

        Raises:
            NotFoundError: nobody wished it.
        """
        try:
            await self._store.delete(paths.bookie_draining(bookie_id))
        except NoNodeError:
            raise _not_wished(bookie_id) from None

    async def finish(self, bookie_id: str) -> None:
        """Forget a bookie that is drained and gone.

        Raises:
            NotFoundError: nobody wished it.
            ConflictError: ledgers name it.
            ServiceNotReadyError: it is registered still; stop it, and call again.
        """
        found = await self.progress(bookie_id)
        if found["ledgers_left"]:
            raise ConflictError(f"{found['ledgers_left']} ledgers name {bookie_id} still", field="bookie")
        if found["is_alive"]:
            raise ServiceNotReadyError(f"{bookie_id} is registered still: stop it first", field="bookie")
        for path in (paths.bookie_cookie(bookie_id), paths.bookie_draining(bookie_id)):  # the wish goes last
            with contextlib.suppress(NoNodeError):
                await self._store.delete(path)

    async def _progress(self, bookie_id: str, ledgers: Iterable[LedgerMetadata]) -> dict[str, Any]:
        left = ledgers_on(ledgers, (bookie_id,))
        is_alive = bookie_id in await self._membership.alive()
        is_read_only = not is_alive or bookie_id in await self._store.children(paths.BOOKIES_READONLY)
        found = Decommissioning(bookie_id, is_alive, is_read_only, len(left), sum(not one.is_closed for one in left))
        return {**asdict(found), "is_drained": found.is_drained}

    async def _require_known(self, bookie_id: str, ledgers: Iterable[LedgerMetadata]) -> None:
        known: Collection[str] = await self._membership.alive()
        if bookie_id in known or bookie_id in named_bookies(ledgers):
            return
        if await self._store.exists(paths.bookie_cookie(bookie_id)) is None:
            raise NotFoundError(f"there is no bookie {bookie_id}", field="bookie", limit=", ".join(sorted(known)))

    async def _require_wished(self, bookie_id: str) -> None:
        if await self._store.exists(paths.bookie_draining(bookie_id)) is None:
            raise _not_wished(bookie_id)


def _not_wished(bookie_id: str) -> NotFoundError:
    return NotFoundError(f"{bookie_id} is not being decommissioned", field="bookie")
