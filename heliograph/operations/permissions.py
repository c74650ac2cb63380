"""Operations on what roles may do: ``admin.permissions``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence

from heliograph.operations.table import Answer, OperationGroup, Right, Scope, TimeMs, operation


class PermissionOperations(OperationGroup, group="permissions"):
    """A grant gives a role actions, which are ``produce``, ``consume``, ``functions``, ``sources``, ``sinks`` and
    ``packages``. A role that ends or begins with ``*`` stands for all that begin or end so.

    Methods that name a namespace raise NamespaceNotFoundError where there is none. Topics need not exist: a grant may
    come before the topic, and is removed with it. Grants raise BadRequestError for a role, an action
    or a subscription that cannot be, and for more than a namespace can hold. They return False where authentication is
    off, so that what was granted is stored and decides nothing yet; brokers of older releases return None.
    """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def granted(self, namespace: str) -> Answer:
        """Return everything that was granted in a namespace: ``namespace_auth`` (actions by role), ``destination_auth``
        (actions by topic and role), ``subscription_auth_roles`` (roles by subscription), ``subscription_auth_mode``."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def of_namespace(self, namespace: str) -> dict[str, list[str]]:
        """Return the actions that roles have on all topics of a namespace, by role."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def grant(self, namespace: str, role: str, actions: Sequence[str]) -> bool:
        """Give a role these actions on all topics of a namespace, instead of its earlier ones."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def revoke(self, namespace: str, role: str) -> None:
        """Take a role's grants on a namespace away. Its open producers and consumers are closed within moments."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def of_topic(self, topic: str) -> dict[str, list[str]]:
        """Return the actions that roles have on a topic by grants on it, on its partitioned topic and on its namespace,
        by role."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def grant_topic(self, topic: str, role: str, actions: Sequence[str]) -> bool:
        """Give a role these actions on a topic with its partitions, instead of its earlier ones."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def revoke_topic(self, topic: str, role: str) -> bool:
        """Revoke a role's grant on a topic; return False if it had none there."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def of_subscriptions(self, namespace: str) -> dict[str, list[str]]:
        """Return the only roles that may use a subscription, by the subscriptions that have such a list."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> bool:
        """Let only these roles use the subscriptions of one name in a namespace. They still need ``consume``.

        Administrators of the tenant are not bound by the list. An empty list lets all roles.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role from the list of a subscription. A list that becomes empty lets all roles, as in Pulsar.

        Raises:
            NotFoundError: the subscription has no list.
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def revoke_token(self, token_id: str, ends_ms: TimeMs | None = None) -> None:
        """Refuse a token from now on, everywhere, and close its connections. Expired tokens leave the list.

        Args:
            token_id: the token's claim ``jti``.
            ends_ms: when the token ends by itself; None: never, or it is not known.

        Raises:
            BadRequestError: the id is empty or longer than a token may be.
            ResourceError: the list is full of tokens that have not ended.
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def revoked_tokens(self) -> list[Answer]:
        """Return the revoked tokens that have not ended, the oldest first.

        Returns:
            of each ``token_id``, ``revoked_ms`` and ``expires_ms`` (None: it is not known), or, where the record is
            damaged, which leaves the token revoked, only ``damaged``: the SHA-256 of the token's id.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def subscription_mode(self, namespace: str) -> str:
        """Return ``None``, or ``Prefix`` if the name of a subscription has to begin with its consumer's role."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def set_subscription_mode(self, namespace: str, mode: str) -> bool:
        """Set the mode of a namespace, ``None`` or ``Prefix``. Open consumers that it forbids are closed."""
