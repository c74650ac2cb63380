"""The operations on what roles may do, the same on every broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.grants import (
    on_topic,
    with_grant,
    with_mode,
    with_subscription_roles,
    without_grant,
    without_subscription_role,
    without_topics,
)
from heliograph.actors.broker.namespaces.records import probe_of
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.auth.principal import TOKEN_BYTES_MAX
from heliograph.base.errors import BadRequestError, NamespaceNotFoundError
from heliograph.metadata import paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import AuthPolicies, NamespacePolicies
from heliograph.metadata.recipes import revoked_tokens
from heliograph.metadata.recipes.update_loop import update
from heliograph.metadata.store import MetadataStore
from heliograph.operations.permissions import PermissionOperations
from heliograph.protocol.topic_name import TopicName


class PermissionAdminService(PermissionOperations):
    """The operations on grants, which are part of the record of their namespace.

    Args:
        is_enforced: whether callers are authenticated, so that grants decide.
    """

    def __init__(self, store: MetadataStore, catalog: Catalog, *, is_enforced: bool) -> None:
        self._store = store
        self._catalog = catalog
        self._is_enforced = is_enforced

    @override
    async def granted(self, namespace: str) -> dict[str, Any]:
        return asdict(await self._auth(probe_of(namespace)))

    @override
    async def of_namespace(self, namespace: str) -> dict[str, list[str]]:
        auth = await self._auth(probe_of(namespace))
        return {role: list(actions) for role, actions in sorted(auth.namespace_auth.items())}

    @override
    async def grant(self, namespace: str, role: str, actions: Sequence[str]) -> bool:
        await self._change(probe_of(namespace), lambda auth: with_grant(auth, role, actions))
        return self._is_enforced

    @override
    async def revoke(self, namespace: str, role: str) -> None:
        await self._change(probe_of(namespace), lambda auth: without_grant(auth, role))

    @override
    async def of_topic(self, topic: str) -> dict[str, list[str]]:
        name = TopicName.parse(topic)
        return on_topic(await self._auth(name), list(dict.fromkeys((str(name), name.partitioned_name))))

    @override
    async def grant_topic(self, topic: str, role: str, actions: Sequence[str]) -> bool:
        name = TopicName.parse(topic)
        await self._change(name, lambda auth: with_grant(auth, role, actions, str(name)))
        return self._is_enforced

    @override
    async def revoke_topic(self, topic: str, role: str) -> bool:
        name, was_granted = TopicName.parse(topic), False

        def change(auth: AuthPolicies) -> AuthPolicies:
            nonlocal was_granted
            was_granted = was_granted or role in auth.destination_auth.get(str(name), {})
            return without_grant(auth, role, str(name))

        await self._change(name, change)
        return was_granted

    @override
    async def of_subscriptions(self, namespace: str) -> dict[str, list[str]]:
        auth = await self._auth(probe_of(namespace))
        return {name: list(roles) for name, roles in sorted(auth.subscription_auth_roles.items())}

    @override
    async def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> bool:
        await self._change(probe_of(namespace), lambda auth: with_subscription_roles(auth, subscription, roles))
        return self._is_enforced

    @override
    async def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        await self._change(probe_of(namespace), lambda auth: without_subscription_role(auth, subscription, role))

    @override
    async def revoke_token(self, token_id: str, ends_ms: Any = None) -> None:
        if not 0 < len(token_id) <= TOKEN_BYTES_MAX:
            raise BadRequestError("no token has this id", field="token_id", limit=f"1 to {TOKEN_BYTES_MAX} characters")
        with needs_session():
            await revoked_tokens.revoke(self._store, token_id, ends_ms)

    @override
    async def revoked_tokens(self) -> list[dict[str, Any]]:
        with needs_session():
            found, damaged = await revoked_tokens.revoked(self._store)
        return [*map(asdict, found), *({"damaged": name} for name in damaged)]

    @override
    async def subscription_mode(self, namespace: str) -> str:
        return (await self._auth(probe_of(namespace))).subscription_auth_mode

    @override
    async def set_subscription_mode(self, namespace: str, mode: str) -> bool:
        await self._change(probe_of(namespace), lambda auth: with_mode(auth, mode))
        return self._is_enforced

    async def forget(self, topic: TopicName) -> None:
        """Remove the grants on a deleted topic, so that a later topic of the same name does not have them."""
        names = {str(topic), topic.partitioned_name} if topic.partition < 0 else {str(topic)}
        try:
            auth = await self._auth(topic)
        except NamespaceNotFoundError:
            return
        if without_topics(auth, names) != auth:
            await self._change(topic, lambda found: without_topics(found, names))

    async def _auth(self, name: TopicName) -> AuthPolicies:
        return (await self._catalog.policies(name)).auth_policies

    async def _change(self, name: TopicName, change: Callable[[AuthPolicies], AuthPolicies]) -> None:
        """Change the grants of a namespace with compare-and-set.

        Raises:
            NamespaceNotFoundError.
        """

        def changed(record: NamespacePolicies) -> NamespacePolicies | None:
            auth = change(record.auth_policies)
            return None if auth == record.auth_policies else replace(record, auth_policies=auth)

        try:
            with needs_session():
                await update(self._store, paths.namespace(name.tenant, name.namespace_name), NamespacePolicies, changed)
        except NoNodeError:
            raise NamespaceNotFoundError(f"there is no namespace {name.namespace}", field="namespace") from None
