"""Reading nodes, and the watches that reads leave."""

from __future__ import annotations

import dataclasses

from metadata.endpoint.acl import Acl, allows, masked
from metadata.endpoint.acl_directory import is_reserved
from metadata.endpoint.codes import AddWatchMode, ErrorCode, Permission, WatcherType, WireError
from metadata.endpoint.limits import DESCENDANTS_MAX
from metadata.endpoint.requests import SetWatches
from metadata.endpoint.writes import Guard, check_visible
from metadata.errors import NoNodeError
from metadata.store import EventType, Stat, Watcher, WatchEvent
from metadata.watches import WatchKind
from metadata.znode import ROOT, check_path


class Reads:
    """The reads of one connection, one at a time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = guard.session
        self._directory = guard.directory

    async def exists(self, path: str, watch: bool) -> Stat | None:
        """The stat, or None; a watch is left either way."""
        check_visible(path)
        store = self._session.store
        if watch:
            stat = await self._session.board.read(WatchKind.DATA, path, lambda watcher: store.exists(path, watcher))
        else:
            stat = await store.exists(path)
        return None if stat is None else self._shown(path, stat)

    async def get(self, path: str, watch: bool) -> tuple[bytes, Stat]:
        """Value and stat."""
        await self._guard.require(path, Permission.READ)
        store = self._session.store
        if watch:
            value, stat = await self._session.board.read(WatchKind.DATA, path, lambda watcher: store.get(path, watcher))
        else:
            value, stat = await store.get(path)
        return value, self._shown(path, stat)

    async def children(self, path: str, watch: bool) -> tuple[list[str], Stat]:
        """Names and stat; the stat is of the moment before the names, but for the number of children.

        Before, so that a client that comes back and says what it has seen is told too much rather than too little.
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
            names, stat = await self._session.board.read(WatchKind.CHILD, path, read)
        else:
            names, stat = await read(None)
        names = _without_own(path, names)
        return names, dataclasses.replace(self._session.saw(stat), num_children=len(names))

    async def names(self, path: str) -> list[str]:
        """The names alone, and no watch."""
        await self._guard.require(path, Permission.READ)
        return _without_own(path, await self._session.store.children(path))

    async def acl(self, path: str) -> tuple[Acl, int, Stat]:
        """The ACL, its version, and the node's stat. Hashes are shown to those who may administer the node."""
        check_visible(path)
        stat = await self._session.store.exists(path)
        if stat is None:
            raise NoNodeError(f"no node {path}")
        acl, version = await self._directory.of(path, self._session.store)
        if not allows(acl, Permission.READ | Permission.ADMIN, self._guard.identities):
            raise WireError(f"the ACL of {path} is not for this client", ErrorCode.NO_AUTH)
        if not allows(acl, Permission.ADMIN, self._guard.identities):
            acl = masked(acl)
        return acl, version, self._shown(path, stat)

    async def acl_version(self, path: str) -> int:
        """The version of a node's ACL."""
        return (await self._directory.of(path, self._session.store))[1]

    async def ephemerals(self, prefix: str) -> list[str]:
        """The session's ephemerals below a prefix.

        Raises:
            WireError: SYSTEM_ERROR, it has made too many to keep account of.
        """
        made = self._session.ephemerals()
        if made is None:
            raise WireError("this session has made too many ephemerals to list them", ErrorCode.SYSTEM_ERROR)
        found: list[str] = []
        for path in made:
            stat = await self._session.store.exists(path)
            if stat is None or stat.ephemeral_owner != self._session.store.session_id:
                self._session.deleted(path)
            elif path.startswith(prefix):
                found.append(path)
        return found

    async def count_descendants(self, path: str) -> int:
        """How many nodes are below a node.

        Raises:
            WireError: SYSTEM_ERROR, more than are counted.
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
            below = [child for name in names if not is_reserved(child := f"{node.rstrip('/')}/{name}")]
            waiting += below
            count += len(below)
            if count > DESCENDANTS_MAX:
                raise WireError(f"{path} has more than {DESCENDANTS_MAX} nodes below it", ErrorCode.SYSTEM_ERROR)
        return count

    async def sync(self, path: str) -> None:
        """Wait until everything that was complete before is seen."""
        await self._session.store.sync(path)

    async def add_watch(self, path: str, mode: AddWatchMode) -> None:
        """Set a standing watch."""
        check_visible(path)
        check_path(path)
        await self._session.board.add_standing(mode, path, self._session.store.watch)

    def has_watch(self, path: str, kind: WatcherType) -> bool:
        """Has the client such a watch?"""
        return self._session.board.has(path, kind)

    def remove_watches(self, path: str, kind: WatcherType) -> bool:
        """Take such watches away; False if there were none."""
        return self._session.board.remove(path, kind)

    async def reset_watches(self, asked: SetWatches) -> None:
        """Set watches again; where something happened after ``asked.zxid``, the client is told instead."""
        for path in asked.data:
            await self._reset_data(path, asked.zxid, existed=True)
        for path in asked.exist:
            await self._reset_data(path, asked.zxid, existed=False)
        for path in asked.child:
            await self._reset_child(path, asked.zxid)
        for mode, paths in zip(AddWatchMode, (asked.persistent, asked.recursive), strict=True):
            for path in paths:
                await self.add_watch(path, mode)
                self._session.board.answered()

    async def _reset_data(self, path: str, zxid: int, *, existed: bool) -> None:
        board = self._session.board
        stat = await self.exists(path, watch=True)
        board.answered()
        if existed and stat is None:
            board.missed(WatchEvent(EventType.DELETED, path))
        elif existed and stat is not None and stat.mzxid > zxid:
            board.missed(WatchEvent(EventType.CHANGED, path))
        elif not existed and stat is not None:
            board.missed(WatchEvent(EventType.CREATED, path))

    async def _reset_child(self, path: str, zxid: int) -> None:
        board = self._session.board
        try:
            _, stat = await self.children(path, watch=True)
        except NoNodeError:
            board.missed(WatchEvent(EventType.DELETED, path))
            return
        board.answered()
        if stat.pzxid > zxid:
            board.missed(WatchEvent(EventType.CHILD, path))

    def _shown(self, path: str, stat: Stat) -> Stat:
        """The stat as the client sees it: the endpoint's own node below the root does not count."""
        if path == ROOT and self._directory.stands:
            stat = dataclasses.replace(stat, num_children=stat.num_children - 1)
        return self._session.saw(stat)


def _without_own(path: str, names: list[str]) -> list[str]:
    """The names of children that a client may see."""
    return [name for name in names if not is_reserved(ROOT + name)] if path == ROOT else names
