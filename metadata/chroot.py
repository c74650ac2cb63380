"""A store seen from one of its nodes: every path is taken below it, every event told relative to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from metadata.parents import create_parents
from metadata.store import (
    ANY_VERSION,
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
from metadata.znode import ROOT, check_operation, check_path


class ChrootStore:
    """A MetadataStore that keeps everything below ``root`` of another one; it owns that one's session."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        check_path(root)
        assert root != ROOT, "the root itself needs no chroot"
        self._store = store
        self._root = root

    @classmethod
    async def below(cls, store: MetadataStore, root: str) -> ChrootStore:
        """The same, with ``root`` created when it is missing.

        Raises:
            InvalidPathError.
        """
        chroot = cls(store, root)
        await create_parents(store, f"{root}/child")
        return chroot

    @property
    def session_id(self) -> int:
        """See MetadataStore."""
        return self._store.session_id

    @property
    def session_token(self) -> str:
        """See MetadataStore."""
        return self._store.session_token

    @property
    def session_timeout_ms(self) -> int:
        """See MetadataStore."""
        return self._store.session_timeout_ms

    @property
    def state(self) -> SessionState:
        """See MetadataStore."""
        return self._store.state

    def add_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._store.add_session_listener(listener)

    def remove_session_listener(self, listener: SessionListener) -> None:
        """See MetadataStore."""
        self._store.remove_session_listener(listener)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """See MetadataStore."""
        inner = self._inner(path, is_named_by_store=sequence)
        created = await self._store.create(inner, value, ephemeral=ephemeral, sequence=sequence, parents=parents)
        return self._outer(created)

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """See MetadataStore."""
        return await self._store.get(self._inner(path), self._translated(watcher))

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
        """See MetadataStore."""
        return await self._store.set(self._inner(path), value, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """See MetadataStore."""
        check_operation(Delete(path, version))
        await self._store.delete(self._inner(path), version)

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """See MetadataStore."""
        return await self._store.exists(self._inner(path), self._translated(watcher))

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """See MetadataStore."""
        return await self._store.children(self._inner(path), self._translated(watcher))

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """See MetadataStore."""
        for index, operation in enumerate(operations):
            check_operation(operation, index)
        inner = [dataclasses.replace(operation, path=self._inner_of(operation)) for operation in operations]
        results = await self._store.multi(inner)
        return [self._outer(result) if isinstance(result, str) else result for result in results]

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """See MetadataStore."""
        translated = self._translated(watcher)
        assert translated is not None, "a watcher was given"
        return await self._store.watch(self._inner(path), translated)

    async def sync(self, path: str = "/") -> None:
        """See MetadataStore."""
        await self._store.sync(self._inner(path))

    async def end_session(self, token: str) -> None:
        """See MetadataStore."""
        await self._store.end_session(token)

    async def close(self) -> None:
        """See MetadataStore."""
        await self._store.close()

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
