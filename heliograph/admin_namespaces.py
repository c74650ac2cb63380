"""Administration of tenants, namespaces and policies: ``admin.namespaces``.

A namespace is named ``tenant/namespace``. Policies go by the names that ``policies`` answers with, such as
``retention_seconds``; docs/operations.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from heliograph.admin_schemas import Call

Answer = dict[str, Any]
PolicyValue = bool | int | str


class Namespaces:
    """The async form. Methods that name a namespace raise NamespaceNotFoundError, those that name a topic
    TopicNotFoundError, those that name a tenant NotFoundError, where there is none.

    Args:
        call: runs a method of the brokers' admin interface.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    async def tenants(self) -> list[str]:
        """Names of the tenants."""
        return list(await self._run("tenants"))

    async def tenant(self, name: str) -> Answer:
        """``admin_roles`` and ``allowed_clusters`` of a tenant."""
        return dict(await self._run("tenant", name=name))

    async def create_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Create a tenant.

        Raises:
            ConflictError: it exists.
        """
        await self._run(
            "create_tenant", name=name, admin_roles=list(admin_roles), allowed_clusters=list(allowed_clusters)
        )

    async def update_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Replace a tenant's roles and clusters."""
        await self._run(
            "update_tenant", name=name, admin_roles=list(admin_roles), allowed_clusters=list(allowed_clusters)
        )

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant.

        Raises:
            ConflictError: it has namespaces.
        """
        await self._run("delete_tenant", name=name)

    async def list(self, tenant: str | None = None) -> Sequence[str]:
        """The namespaces, of one tenant or of all."""
        return tuple(await self._run("list", tenant=tenant))

    async def create(
        self, namespace: str, bundles: int | None = None, policies: Mapping[str, PolicyValue] | None = None
    ) -> None:
        """Create a namespace of an existing tenant.

        Args:
            bundles: how many parts its topics are spread over at first.
            policies: set from the start.

        Raises:
            ConflictError: it exists.
        """
        await self._run("create", namespace=namespace, bundles=bundles, policies=dict(policies or {}))

    async def delete(self, namespace: str, force: bool = False) -> None:
        """Delete a namespace; ``force`` with all topics in it.

        Raises:
            ConflictError: it has topics, and ``force`` is not set.
        """
        await self._run("delete", namespace=namespace, force=force)

    async def policies(self, namespace: str) -> Answer:
        """Every policy of a namespace by name."""
        return dict(await self._run("policies", namespace=namespace))

    async def set_policies(self, namespace: str, values: Mapping[str, PolicyValue]) -> None:
        """Set some policies; they act within moments.

        Raises:
            BadRequestError, InvalidQuorumError: a name or value that cannot be.
        """
        await self._run("set_policies", namespace=namespace, values=dict(values))

    async def remove_policies(self, namespace: str, names: Sequence[str]) -> None:
        """Have some policies as they are by default."""
        await self._run("remove_policies", namespace=namespace, names=[*names])

    async def topic_policies(self, topic: str, applied: bool = False) -> Answer:
        """What a topic overrides of its namespace's policies; ``applied``: everything that holds for it."""
        return dict(await self._run("topic_policies", topic=topic, applied=applied))

    async def set_topic_policies(self, topic: str, values: Mapping[str, PolicyValue]) -> None:
        """Override some policies for a topic with all its partitions; raises as ``set_policies``."""
        await self._run("set_topic_policies", topic=topic, values=dict(values))

    async def remove_topic_policies(self, topic: str, names: Sequence[str]) -> None:
        """Let a topic go by its namespace's policies again."""
        await self._run("remove_topic_policies", topic=topic, names=[*names])

    async def _run(self, method: str, **arguments: Any) -> Any:
        return await self._call("administer_namespaces", method, arguments)


class NamespacesSync:
    """The blocking form: the same methods, each run to its end."""

    def __init__(self, namespaces: Namespaces, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._namespaces = namespaces
        self._run = run

    def tenants(self) -> list[str]:
        """As ``Namespaces.tenants``."""
        return list(self._run(self._namespaces.tenants()))

    def tenant(self, name: str) -> Answer:
        """As ``Namespaces.tenant``."""
        return dict(self._run(self._namespaces.tenant(name)))

    def create_tenant(self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()) -> None:
        """As ``Namespaces.create_tenant``."""
        self._run(self._namespaces.create_tenant(name, admin_roles, allowed_clusters))

    def update_tenant(self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()) -> None:
        """As ``Namespaces.update_tenant``."""
        self._run(self._namespaces.update_tenant(name, admin_roles, allowed_clusters))

    def delete_tenant(self, name: str) -> None:
        """As ``Namespaces.delete_tenant``."""
        self._run(self._namespaces.delete_tenant(name))

    def list(self, tenant: str | None = None) -> Sequence[str]:
        """As ``Namespaces.list``."""
        return tuple(self._run(self._namespaces.list(tenant)))

    def create(
        self, namespace: str, bundles: int | None = None, policies: Mapping[str, PolicyValue] | None = None
    ) -> None:
        """As ``Namespaces.create``."""
        self._run(self._namespaces.create(namespace, bundles, policies))

    def delete(self, namespace: str, force: bool = False) -> None:
        """As ``Namespaces.delete``."""
        self._run(self._namespaces.delete(namespace, force))

    def policies(self, namespace: str) -> Answer:
        """As ``Namespaces.policies``."""
        return dict(self._run(self._namespaces.policies(namespace)))

    def set_policies(self, namespace: str, values: Mapping[str, PolicyValue]) -> None:
        """As ``Namespaces.set_policies``."""
        self._run(self._namespaces.set_policies(namespace, values))

    def remove_policies(self, namespace: str, names: Sequence[str]) -> None:
        """As ``Namespaces.remove_policies``."""
        self._run(self._namespaces.remove_policies(namespace, names))

    def topic_policies(self, topic: str, applied: bool = False) -> Answer:
        """As ``Namespaces.topic_policies``."""
        return dict(self._run(self._namespaces.topic_policies(topic, applied)))

    def set_topic_policies(self, topic: str, values: Mapping[str, PolicyValue]) -> None:
        """As ``Namespaces.set_topic_policies``."""
        self._run(self._namespaces.set_topic_policies(topic, values))

    def remove_topic_policies(self, topic: str, names: Sequence[str]) -> None:
        """As ``Namespaces.remove_topic_policies``."""
        self._run(self._namespaces.remove_topic_policies(topic, names))
