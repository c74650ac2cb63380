"""A store below one of its nodes: every path and every event is relative to that node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from typing_extensions import override

from heliograph.metadata.parents import create_parents
from heliograph.metadata.store import (
    ANY_VERSION,
    CHILDREN_PAGE_MAX,
    Create,
    Delete,
    MetadataStore,
    Operation,
    SessionListener,
    SessionState,
    Stat,
    Watch,
    Watcher,
    WatchEvent,
)
from heliograph.metadata.znode import ROOT, check_operation, check_path

REAPABLE_MAX = 1_000_000  # of one answer


class ChrootStore(MetadataStore):
    """A MetadataStore that keeps everything below ``root`` of another store, whose session it owns."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        check_path(root)
        assert root != ROOT, "the root itself needs no chroot"
        self._store = store
        self._root = root

    @classmethod
    async def below(cls, store: MetadataStore, root: str) -> ChrootStore:
        """Create ``root`` if it is missing, and return the store below it.

        Raises:
            InvalidPathError.
        """
        chroot = cls(store, root)
        await create_parents(store, f"{root}/child")
        return chroot

    @property
    @override
    def session_id(self) -> int:
        return self._store.session_id

    @property
    @override
    def session_token(self) -> str:
        return self._store.session_token

    @property
    @override
    def session_timeout_ms(self) -> int:
        return self._store.session_timeout_ms

    @property
    @override
    def state(self) -> SessionState:
        return self._store.state

    @property
    @override
    def silent_seconds(self) -> float:
        return self._store.silent_seconds

    @property
    @override
    def is_in_doubt(self) -> bool:
        return self._store.is_in_doubt

    @override
    def add_session_listener(self, listener: SessionListener) -> None:
        self._store.add_session_listener(listener)

    @override
    def remove_session_listener(self, listener: SessionListener) -> None:
        self._store.remove_session_listener(listener)

    @override
    async def create(
        self,
        path: str,
        value: bytes | None = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        inner = self._inner(path, is_named_by_store=sequence)
        created = await self._store.create(inner, value, ephemeral=ephemeral, sequence=sequence, parents=parents)
        return self._outer(created)

    @override
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        return await self._store.get(self._inner(path), self._translated(watcher))

    @override
    async def set(self, path: str, value: bytes | None, version: int = ANY_VERSION) -> Stat:
        return await self._store.set(self._inner(path), value, version)

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_operation(Delete(path, version))
        await self._store.delete(self._inner(path), version)

    @override
    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        return await self._store.exists(self._inner(path), self._translated(watcher))

    @override
    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        return await self._store.children(self._inner(path), self._translated(watcher))

    @override
    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        return await self._store.children_from(self._inner(path), start, limit)

    @override
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        for index, operation in enumerate(operations):
            check_operation(operation, index)
        inner = [dataclasses.replace(operation, path=self._inner_of(operation)) for operation in operations]
        results = await self._store.multi(inner)
        return [self._outer(result) if isinstance(result, str) else result for result in results]

    @override
    async def watch(self, path: str, watcher: Watcher) -> Watch:
        translated = self._translated(watcher)
        assert translated is not None, "a watcher was given"
        return await self._store.watch(self._inner(path), translated)

    @override
    async def sync(self, path: str = "/") -> None:
        await self._store.sync(self._inner(path))

    @override
    async def reapable(self, count_max: int) -> list[str]:
        # All of the store's are asked for: those outside of the chroot do not count.
        found = await self._store.reapable(REAPABLE_MAX)
        inside = [self._outer(path) for path in found if path.startswith(self._root + "/")]
        return inside[:count_max]

    @override
    async def end_session(self, token: str) -> None:
        await self._store.end_session(token)

    @override
    async def close(self) -> None:
        await self._store.close()

    @override
    async def detach(self) -> None:
        await self._store.detach()

    def _inner_of(self, operation: Operation) -> str:
        return self._inner(operation.path, is_named_by_store=isinstance(operation, Create) and operation.sequence)

    def _inner(self, path: str, *, is_named_by_store: bool = False) -> str:
        if path == ROOT and not is_named_by_store:
            return self._root
        # Without this, "x" would become a sibling of the root and "" the root itself.
        check_path(path + "0" if is_named_by_store else path)
        return self._root + path

    def _outer(self, path: str) -> str:
        return path.removeprefix(self._root) or ROOT

    def _translated(self, watcher: Watcher | None) -> Watcher | None:
        if watcher is None:
            return None
        return lambda event: watcher(WatchEvent(event.type, self._outer(event.path)))
