"""Operations on tenants, namespaces and policies: ``admin.namespaces``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from heliograph.base.errors import ConflictError, NamespaceNotFoundError, NotFoundError
from heliograph.operations.table import Answer, OperationGroup, Right, Scope, operation

PolicyValue = bool | int | float | str | timedelta  # a span where the name ends in seconds


class NamespaceOperations(OperationGroup, group="namespaces"):
    """A namespace is named ``tenant/namespace``. Policies go by the names that ``policies`` answers with, such as
    ``retention_seconds``; docs/operations/topics.md explains them.

    Methods that name a namespace raise NamespaceNotFoundError, those that name a topic TopicNotFoundError, those that
    name a tenant NotFoundError, where there is none.
    """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def tenants(self) -> Sequence[str]:
        """Return the names of the tenants, sorted."""

    @operation(Scope.TENANT, Right.SUPERUSER, target="name")
    async def tenant(self, name: str) -> Answer:
        """Return ``admin_roles`` and ``allowed_clusters`` of a tenant."""

    @operation(Scope.TENANT, Right.SUPERUSER, target="name", fulfilled_by=ConflictError)
    async def create_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Create a tenant.

        Raises:
            ConflictError: it exists.
            InvalidTopicNameError: no tenant may have that name.
        """

    @operation(Scope.TENANT, Right.SUPERUSER, target="name")
    async def update_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Replace a tenant's roles and clusters."""

    @operation(Scope.TENANT, Right.SUPERUSER, target="name", fulfilled_by=NotFoundError)
    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant.

        Raises:
            ConflictError: it has namespaces.
        """

    @operation(Scope.TENANT, Right.TENANT_ADMIN)
    async def list(self, tenant: str | None = None) -> Sequence[str]:
        """Return the namespaces of one tenant or (None) of all, sorted."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN, fulfilled_by=ConflictError)
    async def create(
        self, namespace: str, bundles: int | None = None, policies: Mapping[str, PolicyValue] | None = None
    ) -> None:
        """Create a namespace of an existing tenant.

        Args:
            bundles: how many bundles its topics are spread over at first; None: the default.
            policies: set from the start.

        Raises:
            ConflictError: it exists.
            BadRequestError, InvalidQuorumError: a name or value that is not allowed.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN, fulfilled_by=NamespaceNotFoundError)
    async def delete(self, namespace: str, force: bool = False) -> None:
        """Delete a namespace; with ``force`` all topics in it, in use or not.

        Raises:
            ConflictError: it has topics, and ``force`` is not set.
            ServiceNotReadyError: topics are being created in it; try again.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def policies(self, namespace: str, own: bool = False) -> Answer:
        """Return every policy of a namespace by name, ``bundles``, the number of bundles, and ``is_closing`` while its
        topics are deleted by force; with ``own`` only the policies that were set for the namespace itself."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def properties(self, namespace: str) -> dict[str, str]:
        """Return the properties of a namespace."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def set_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a namespace.

        Raises:
            BadRequestError: they are no texts, or too large.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def update_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Set some properties of a namespace; the others stay. Raises as ``set_properties``."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def remove_properties(self, namespace: str, names: Sequence[str]) -> dict[str, str]:
        """Remove some properties of a namespace; return the removed ones."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def set_policies(self, namespace: str, values: Mapping[str, PolicyValue]) -> None:
        """Set some policies. Loaded topics apply them within moments.

        Raises:
            BadRequestError, InvalidQuorumError: a name or value that is not allowed.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def remove_policies(self, namespace: str, names: Sequence[str]) -> None:
        """Reset some policies to their defaults.

        Raises:
            BadRequestError: a name that is no policy.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def topic_policies(self, topic: str, applied: bool = False, subscription: str | None = None) -> Answer:
        """Return the policies that a topic, or one subscription of it, overrides; with ``applied`` all that hold."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def subscription_policies(self, topic: str) -> dict[str, Answer]:
        """Return the policies that single subscriptions of a topic override, by subscription."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def set_topic_policies(
        self, topic: str, values: Mapping[str, PolicyValue], subscription: str | None = None
    ) -> None:
        """Override some policies for a topic with all its partitions; raises as ``set_policies``.

        Args:
            subscription: only for this one, which need not exist; ``subscription_dispatch_...`` are such policies.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def remove_topic_policies(self, topic: str, names: Sequence[str], subscription: str | None = None) -> None:
        """Remove overrides of a topic or of one subscription, so that its namespace's, or the topic's, policies hold;
        raises as ``remove_policies``."""
