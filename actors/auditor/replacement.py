"""Loss of a bookie's disk: the permission to start on empty directories, and copies made again at once.

A bookie whose disk died starts on empty directories only with a permission in metadata, which counts for its next start
alone. That start puts every ledger that names the bookie into limbo, fenced, before it serves (I4, I6), so it never
answers "no such entry" for what it lost. Its copies are then made again from the other bookies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from heliograph.actors.auditor.auditor import Auditor, in_steps
from heliograph.actors.auditor.checks import Finding, last_copies, ledgers_on
from heliograph.actors.auditor.widest_ensemble import require_writable
from heliograph.base.errors import ConflictError, NotFoundError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import BookieReplacement, Cookie
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.store import MetadataStore


class DiskReplacement:
    """Steps of commands on a bookie's disk. Each may be repeated."""

    def __init__(self, store: MetadataStore, auditor: Auditor) -> None:
        self._store = store
        self._auditor = auditor

    async def permit(self, bookie_id: str, *, accept_loss: bool = False) -> dict[str, Any]:
        """Let the bookie's next start accept empty directories, unless entries may have no other copy.

        Args:
            accept_loss: permit it also when entries may be lost for good.

        Returns:
            ``bookie``, and the number of ``ledgers`` that name it.

        Raises:
            NotFoundError: there is no such bookie.
            ConflictError: it serves, is to leave the cluster, or may hold the last copies of entries.
            MetadataError: the outcome is unknown; call again.
        """
        try:
            value, _ = await self._store.get(paths.bookie_cookie(bookie_id))
        except NoNodeError:
            raise NotFoundError(f"there is no bookie {bookie_id} with a cookie", field="bookie") from None
        alive = await self._auditor.membership.alive()
        if bookie_id in alive:
            raise ConflictError(
                f"{bookie_id} serves, so it has its directories: stop it first, or move its data to others with helio "
                "bookie decommission",
                field="bookie",
            )
        if bookie_id in await self._auditor.membership.draining():
            raise ConflictError(f"{bookie_id} is being decommissioned: cancel that first", field="bookie")
        ledgers, last = 0, list[int]()
        async with self._auditor.placements() as index:
            missing = index.named - alive | {bookie_id}
            async for some in in_steps(index.on([bookie_id])):
                ledgers += len(some)
                last += last_copies(some, missing)
        if last and not accept_loss:
            raise ConflictError(
                f"{bookie_id} may hold the last copies of entries in {len(last)} ledgers, such as {last[0]}: start the "
                "other bookies that are down, restore the disk, or accept the loss with --accept-loss",
                field="bookie",
            )
        permission = BookieReplacement(bookie_id, codec.decode(Cookie, value).start)
        path = paths.bookie_replacement(bookie_id)
        if await self._store.exists(path) is None:
            await self._store.create(path, codec.encode(permission), parents=True)
        else:
            await self._store.set(path, codec.encode(permission))
        return {"bookie": bookie_id, "ledgers": ledgers}

    async def recover(self, bookie_id: str, *, is_replaced: bool = False) -> dict[str, Any]:
        """Mark every ledger that names the bookie for repair now, whether the bookie is lost or came back without data.

        Args:
            is_replaced: the bookie came back without data. It has fenced the ledgers that it was writing, so those that
                are open are recovered first: their writers could not go on with them.

        Returns:
            The same as ``progress``.

        Raises:
            NotFoundError: there is no such bookie, and no ledger names it.
            ConflictError: the bookie is down, and too few others are writable to hold its copies.
            MetadataError: the store failed; marked ledgers stay marked.
        """
        found: list[Finding] = []
        unclosed: list[int] = []  # their last segments name the bookie
        async with self._auditor.placements() as index:
            alive = await self._auditor.membership.alive()
            if bookie_id not in alive | index.named:
                raise NotFoundError(f"there is no bookie {bookie_id}, and no ledger names it", field="bookie")
            if bookie_id not in alive:
                await require_writable(self._store, [bookie_id], index.ensemble_size_max)
            async for some in in_steps(index.on([bookie_id])):
                found += ledgers_on(some, (bookie_id,))
                unclosed += [one.ledger_id for one in some if not one.is_closed and bookie_id in one.held[-1]]
        await self._auditor.mark(found)
        if is_replaced and bookie_id in alive:
            await self._mark_abandoned(bookie_id, unclosed)
        return await self._progress(bookie_id, len(found), alive)

    async def progress(self, bookie_id: str) -> dict[str, Any]:
        """Return ``bookie``, ``is_alive``, and how many ledgers are still to be repaired (``ledgers_left``).

        Raises:
            MetadataError: the store failed.
        """
        alive = await self._auditor.membership.alive()
        left = 0
        if bookie_id not in alive:  # of one that is alive, tasks tell
            async with self._auditor.placements() as index:
                async for ledgers, _ in in_steps(index.tally(bookie_id)):
                    left += ledgers
        return await self._progress(bookie_id, left, alive)

    async def _mark_abandoned(self, bookie_id: str, ledger_ids: Iterable[int]) -> None:
        """Have ledgers recovered that are not closed. Those without a task wait for room."""
        for ledger_id in set(await self._auditor.tasks.tasks()).intersection(ledger_ids):
            await self._auditor.tasks.mark(ledger_id, (bookie_id,), is_abandoned=True)

    async def _progress(self, bookie_id: str, left: int, alive: Collection[str]) -> dict[str, Any]:
        """A lost bookie is replaced in every ledger that names it; a living bookie gets its copies back."""
        if bookie_id in alive:
            left = 0
            for ledger_id in await self._auditor.tasks.tasks():
                task = await self._auditor.tasks.task(ledger_id)
                left += task is not None and bookie_id in task.record.missing_bookies
        return {"bookie": bookie_id, "is_alive": bookie_id in alive, "ledgers_left": left}
