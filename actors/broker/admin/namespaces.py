"""The operations on tenants, namespaces and policies, the same on every broker."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence

from typing_extensions import override

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.records import NamespaceRecords, probe_of
from heliograph.base.errors import ConflictError, NamespaceNotFoundError, NotFoundError, ServiceNotReadyError
from heliograph.metadata.store import MetadataStore
from heliograph.operations.namespaces import NamespaceOperations
from heliograph.protocol.topic_name import TopicName

DELETE_ROUNDS_MAX = 5  # of a namespace in which topics are created meanwhile


class NamespaceAdminService(NamespaceRecords, NamespaceOperations):
    """The records of tenants, namespaces and policies; and the deletion of a namespace with its topics.

    Args:
        delete_topic: deletes one topic at its owner.
    """

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        placements: Collection[str],
        delete_topic: Callable[[str, bool], Awaitable[None]],
        bookies_lacking: Callable[[int], Awaitable[object | None]] | None = None,
    ) -> None:
        super().__init__(store, catalog, placements, bookies_lacking)
        self._delete_topic = delete_topic

    @override
    async def delete(self, namespace: str, force: bool = False) -> None:
        name = probe_of(namespace)
        await self._change(namespace, lambda record: None)  # there is one
        with contextlib.suppress(NamespaceNotFoundError):  # another broker finished
            for _ in range(DELETE_ROUNDS_MAX):
                if force:  # first, or clients that reconnect would create its topics again
                    await self.mark(namespace, is_closing=True)
                # Mark it deleted only when it looks empty: while it is, its topics cannot be used.
                is_empty = await self._is_empty(name)
                if is_empty and await self._remove_if_empty(namespace):
                    return
                await self.mark(namespace, is_deleted=False, is_closing=force)  # by a deletion that did not finish
                if not is_empty and not force:
                    raise ConflictError(f"{namespace} has topics: delete them, or force it", field="namespace")
                async for left in self._catalog.left_in(name.tenant, name.namespace_name):
                    await self._delete_all(left)
            raise ServiceNotReadyError(f"topics keep being created in {namespace}: stop their producers, or try again")

    async def finish_deletion(self, namespace: str) -> None:
        """Delete a namespace whose deletion began and did not end; do nothing to any other."""
        record = await self._change(namespace, lambda record: None)
        if record.is_closing or record.is_deleted:
            await self.delete(namespace, record.is_closing)

    async def is_being_deleted(self, namespace: str) -> bool:
        """Return whether a deletion of the namespace began and did not end.

        Raises:
            NamespaceNotFoundError.
        """
        record = await self._change(namespace, lambda record: None)
        return record.is_closing or record.is_deleted

    async def _remove_if_empty(self, namespace: str) -> bool:
        name, is_empty = probe_of(namespace), False
        await self.mark(namespace, is_deleted=True)
        try:
            is_empty = await self._is_empty(name)
        finally:
            if not is_empty:
                await self.mark(namespace, is_deleted=False)
        if is_empty:
            await self.remove(namespace)
        return is_empty

    async def _is_empty(self, name: TopicName) -> bool:
        """Return whether the namespace of ``name`` has no topic, from at most a page of each kind."""
        async for _ in self._catalog.left_in(name.tenant, name.namespace_name):
            return False
        return True

    async def _delete_all(self, left: Sequence[TopicName]) -> None:
        partitioned = sorted({TopicName.parse(name.partitioned_name) for name in left}, key=str)
        for name in dict.fromkeys([*partitioned, *left]):  # a partitioned topic with its partitions
            try:
                await self._delete_topic(str(name), True)
            except NotFoundError:
                continue
