"""The reads of one connection, and the watches that they set."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from heliograph.metadata.endpoint.limits import DESCENDANTS_MAX, READS_AT_ONCE_MAX
from heliograph.metadata.endpoint.serving.writes import Guard
from heliograph.metadata.endpoint.session.acl_directory import is_reserved
from heliograph.metadata.endpoint.wire.acl import Acl, masked
from heliograph.metadata.endpoint.wire.codes import AddWatchMode, ErrorCode, Permission, WatcherType, WireError
from heliograph.metadata.endpoint.wire.requests import SetWatches
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, Stat, Watcher, WatchEvent
from heliograph.metadata.znode import ROOT, check_path


class NodeReads:
    """The reads of one connection, one at a time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = guard.session
        self._directory = guard.directory

    async def exists(self, path: str, watch: bool) -> Stat | None:
        """Return the stat, or None. With ``watch``, a watch is set in both cases. As in ZooKeeper 3.9, it is a read."""
        await self._guard.require(path, Permission.READ)
        store = self._session.store
        if watch:
            stat = await self._session.watches.read(WatchKind.DATA, path, lambda watcher: store.exists(path, watcher))
        else:
            stat = await store.exists(path)
        return None if stat is None else self._shown(path, stat)

    async def get(self, path: str, watch: bool) -> tuple[bytes | None, Stat]:
        await self._guard.require(path, Permission.READ)
        store = self._session.store
        if watch:
            value, stat = await self._session.watches.read(
                WatchKind.DATA, path, lambda watcher: store.get(path, watcher)
            )
        else:
            value, stat = await store.get(path)
        return value, self._shown(path, stat)

    async def children(self, path: str, watch: bool) -> tuple[list[str], Stat]:
        """Return names and stat. The stat, except the number of children, was read before the names.

        The order matters when a client reconnects and reports the newest change that it has seen: it may get one event
        too many, never one too few.
        """
        await self._guard.require(path, Permission.READ)
        store = self._session.store

        async def read(watcher: Watcher | None) -> tuple[list[str], Stat]:
            stat = await store.exists(path)
            names = await store.children(path, watcher)
            if stat is None:
                raise NoNodeError(f"no node {path}")
            return names, stat

        if watch:
            names, stat = await self._session.watches.read(WatchKind.CHILD, path, read)
        else:
            names, stat = await read(None)
        names = _without_own(path, names)
        return names, dataclasses.replace(self._session.saw(stat), num_children=len(names))

    async def names(self, path: str) -> list[str]:
        """Return the names without the stat, and set no watch."""
        await self._guard.require(path, Permission.READ)
        return _without_own(path, await self._session.store.children(path))

    async def acl(self, path: str) -> tuple[Acl, int, Stat]:
        """Return the ACL, its version, and the node's stat. Hashes are shown only to clients with ADMIN."""
        self._guard.caller.require_visible(path)
        stat = await self._session.store.exists(path)
        if stat is None:
            raise NoNodeError(f"no node {path}")
        acl, version = await self._directory.of(path, self._session.store)
        if not self._guard.caller.passes(acl, Permission.READ | Permission.ADMIN):
            raise WireError(f"the client may not read the ACL of {path}", ErrorCode.NO_AUTH)
        if not self._guard.caller.passes(acl, Permission.ADMIN):
            acl = masked(acl)
        return acl, version, self._shown(path, stat)

    async def acl_version(self, path: str) -> int:
        return (await self._directory.of(path, self._session.store))[1]

    async def ephemerals(self, prefix: str) -> list[str]:
        """Return the session's ephemerals below a prefix.

        They are known if the session began at this endpoint. The ephemerals of a session that has moved are searched
        for among all nodes.

        Raises:
            WireError: SYSTEM_ERROR, the session has moved, or has created very many, and there are more nodes below
                the prefix than DESCENDANTS_MAX.
        """
        made = self._session.ephemerals()
        if made is None:
            return await self._search_ephemerals(prefix)
        found: list[str] = []
        for path in made:
            stat = await self._session.store.exists(path)
            if stat is None or stat.ephemeral_owner != self._session.store.session_id:
                self._session.deleted(path)
            elif path.startswith(prefix):
                found.append(path)
        return found

    async def _search_ephemerals(self, prefix: str) -> list[str]:
        """Return the session's ephemerals below a prefix, from the stats of all nodes there.

        Raises:
            WireError: SYSTEM_ERROR, there are too many nodes.
        """
        store = self._session.store
        found: list[str] = []
        looked, waiting = 0, [ROOT]
        while waiting:
            node = waiting.pop()
            names: list[str] = []
            with contextlib.suppress(NoNodeError):  # deleted meanwhile
                names = await store.children(node)
            paths = [f"{node.rstrip('/')}/{name}" for name in names]
            paths = [path for path in paths if path.startswith(prefix) or prefix.startswith(path)]
            paths = [path for path in paths if not is_reserved(path)]
            looked += len(paths)
            if looked > DESCENDANTS_MAX:
                text = f"this session has moved, and there are more than {DESCENDANTS_MAX} nodes below {prefix}"
                raise WireError(text, ErrorCode.SYSTEM_ERROR)
            for first in range(0, len(paths), READS_AT_ONCE_MAX):
                together = paths[first : first + READS_AT_ONCE_MAX]
                stats = await asyncio.gather(*map(store.exists, together))
                for path, stat in zip(together, stats, strict=True):
                    if stat is not None and stat.ephemeral_owner == store.session_id and path.startswith(prefix):
                        found.append(path)
                    elif stat is not None and stat.num_children > 0:
                        waiting.append(path)
        return sorted(found)

    async def count_descendants(self, path: str) -> int:
        """Return the number of nodes below a node.

        Raises:
            WireError: SYSTEM_ERROR, there are more than DESCENDANTS_MAX.
        """
        await self._guard.require(path, Permission.READ)
        store = self._session.store
        count, waiting = 0, [path]
        first = True
        while waiting:
            node = waiting.pop()
            try:
                names = await store.children(node)
            except NoNodeError:
                if first:
                    raise
                continue
            first = False
            below = [child for name in names if self._guard.caller.may_see(child := f"{node.rstrip('/')}/{name}")]
            waiting += below
            count += len(below)
            if count > DESCENDANTS_MAX:
                raise WireError(f"{path} has more than {DESCENDANTS_MAX} nodes below it", ErrorCode.SYSTEM_ERROR)
        return count

    async def sync(self, path: str) -> None:
        """Wait until every change that was complete before the call is visible."""
        await self._session.store.sync(path)

    async def add_watch(self, path: str, mode: AddWatchMode) -> None:
        self._guard.caller.require_visible(path)
        check_path(path)
        await self._session.watches.add_standing(mode, path, self._session.store.watch)

    def has_watch(self, path: str, kind: WatcherType) -> bool:
        return self._session.watches.has(path, kind)

    def remove_watches(self, path: str, kind: WatcherType) -> bool:
        """Remove such watches. Return False if there were none."""
        return self._session.watches.remove(path, kind)

    async def reset_watches(self, asked: SetWatches) -> None:
        """Set watches again. For a change after ``asked.zxid`` the client gets the event instead."""
        for path in asked.data:
            await self._reset_data(path, asked.zxid, existed=True)
        for path in asked.exist:
            await self._reset_data(path, asked.zxid, existed=False)
        for path in asked.child:
            await self._reset_child(path, asked.zxid)
        for mode, paths in zip(AddWatchMode, (asked.persistent, asked.recursive), strict=True):
            for path in paths:
                await self.add_watch(path, mode)
                self._session.watches.answered()

    async def _reset_data(self, path: str, zxid: int, *, existed: bool) -> None:
        watches = self._session.watches
        stat = await self.exists(path, watch=True)
        watches.answered()
        if existed and stat is None:
            watches.missed(WatchEvent(EventType.DELETED, path))
        elif existed and stat is not None and stat.mzxid > zxid:
            watches.missed(WatchEvent(EventType.CHANGED, path))
        elif not existed and stat is not None:
            watches.missed(WatchEvent(EventType.CREATED, path))

    async def _reset_child(self, path: str, zxid: int) -> None:
        watches = self._session.watches
        try:
            _, stat = await self.children(path, watch=True)
        except NoNodeError:
            watches.missed(WatchEvent(EventType.DELETED, path))
            return
        watches.answered()
        if stat.pzxid > zxid:
            watches.missed(WatchEvent(EventType.CHILD, path))

    def _shown(self, path: str, stat: Stat) -> Stat:
        """Return the stat for the client: the endpoint's own node below the root is not counted."""
        if path == ROOT and self._directory.parent_exists:
            stat = dataclasses.replace(stat, num_children=stat.num_children - 1)
        return self._session.saw(stat)


def _without_own(path: str, names: list[str]) -> list[str]:
    """Return the names of children that a client may see."""
    return [name for name in names if not is_reserved(ROOT + name)] if path == ROOT else names
