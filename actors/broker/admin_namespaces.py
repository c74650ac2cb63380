"""Administration of tenants, namespaces and policies: the same on every broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors.broker.admin_brokers import run_method
from actors.broker.catalog import Catalog
from actors.broker.namespace_records import NamespaceRecords, probe_of
from heliograph.errors import ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName
from metadata.store import MetadataStore

DELETE_ROUNDS_MAX = 5  # of a namespace in which topics keep being made

Json = dict[str, Any]


class NamespaceAdmin(NamespaceRecords):
    """Tenants, namespaces and policies; namespaces are deleted with what is in them.

    Args:
        delete_topic: deletes one topic, whoever owns it.
    """

    def __init__(
        self, store: MetadataStore, catalog: Catalog, delete_topic: Callable[[str, bool], Awaitable[None]]
    ) -> None:
        super().__init__(store, catalog)
        self._delete_topic = delete_topic
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            name: getattr(self, name)
            for name in (
                "tenants", "tenant", "create_tenant", "update_tenant", "delete_tenant", "list", "create", "delete",
                "policies", "set_policies", "remove_policies", "topic_policies", "set_topic_policies",
                "remove_topic_policies",
            )
        }  # fmt: skip

    async def run(self, method: str, arguments: Json) -> Any:
        """Run one of the methods by name.

        Raises:
            BadRequestError: there is no such method, or it takes other arguments.
        """
        return await run_method(self._methods, method, arguments)

    async def delete(self, namespace: str, force: bool = False) -> None:
        """Delete a namespace; ``force`` with all topics in it, used or not.

        Raises:
            NamespaceNotFoundError.
            ConflictError: it has topics, and ``force`` is not set.
            ServiceNotReadyError: topics are being made in it; try again.
        """
        name = probe_of(namespace)
        for _ in range(DELETE_ROUNDS_MAX):
            # Only what looks empty is marked: as long as it is, nobody can use what is in it.
            left = await self._catalog.left_in(name.tenant, name.namespace_name)
            if not left and await self._remove_if_empty(namespace):
                return
            await self.mark_deleted(namespace, is_deleted=False)  # by somebody who did not come to the end
            if left and not force:
                raise ConflictError(f"{namespace} has {len(left)} topics: delete them, or force it", field="namespace")
            await self._delete_all(left)
        raise ServiceNotReadyError(f"topics keep being made in {namespace}: stop their producers, or try again")

    async def _remove_if_empty(self, namespace: str) -> bool:
        name, is_empty = probe_of(namespace), False
        await self.mark_deleted(namespace)
        try:
            is_empty = not await self._catalog.left_in(name.tenant, name.namespace_name)
        finally:
            if not is_empty:
                await self.mark_deleted(namespace, is_deleted=False)
        if is_empty:
            await self.remove(namespace)
        return is_empty

    async def _delete_all(self, left: Sequence[TopicName]) -> None:
        whole = sorted({TopicName.parse(name.partitioned_name) for name in left}, key=str)
        for name in dict.fromkeys([*whole, *left]):  # partitioned ones first, with their partitions
            try:
                await self._delete_topic(str(name), True)
            except NotFoundError:
                continue
