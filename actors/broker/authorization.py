"""Decides whether a caller may do something, by the records in metadata and the rules of ``heliograph/auth``.

A decision is made when something is opened or asked for, never for a message. Records are remembered until they change.
A refusal is always decided by records that were just read, so a new grant works at once on every broker; a revocation
works as soon as the broker learns of the change, which the metadata store tells within moments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.auth.config import AuthConfig
from heliograph.auth.permissions import Rules
from heliograph.auth.principal import Principal
from heliograph.base.errors import BadRequestError, NamespaceNotFoundError, NotPermittedError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import AuthPolicies, TenantRecord
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import MetadataStore, WatchEvent
from heliograph.operations.table import AdminOperation, Right, Scope
from heliograph.protocol.topic_name import TopicName

REMEMBERED_MAX = 1_000  # tenants and namespaces, each (I15)

log = logging.getLogger(__name__)


class TargetPlace(NamedTuple):
    """The target of a request: ``namespace`` is ``tenant/namespace``, ``topics`` are full names."""

    tenant: str = ""
    namespace: str = ""
    topics: tuple[str, ...] = ()


class AuthorizedClient(Protocol):
    """A client's connection, as far as rights matter."""

    peer: str

    @property
    def principal(self) -> Principal:
        """The client's principal."""


class HeldRight(NamedTuple):
    """Something that a client keeps open, for which its right was checked when it was opened.

    Attributes:
        close: ends it and tells the client, which asks again and is refused.
    """

    right: Right
    scope: Scope
    target: TopicName | str
    subscription: str | None
    close: Callable[[], None]

    @property
    def namespace(self) -> str:
        """The namespace that it is in, ``tenant/namespace``."""
        return self.target.namespace if isinstance(self.target, TopicName) else self.target


class Authorizer:
    """The decisions of one broker. All calls on one event loop.

    Args:
        config: names the superusers; if it is not enabled, every caller may do everything.
    """

    def __init__(self, config: AuthConfig, store: MetadataStore, catalog: Catalog) -> None:
        self.is_enabled = config.is_enabled
        self.on_changed: list[Callable[[str], None]] = []  # told a tenant, a namespace or, for all of them, ""
        self.on_refused: Callable[[Principal, str, str, str, NotPermittedError], None] = lambda *_: None
        self.on_admin_read: Callable[[Principal, str, str, str], None] = lambda *_: None
        self._superuser_roles = frozenset(config.superuser_roles)
        self._store = store
        self._catalog = catalog
        self._admin_roles: dict[str, tuple[str, ...]] = {}  # by tenant
        self._grants: dict[str, AuthPolicies] = {}  # by namespace
        self._events = 0  # a record that was read while one came may be old
        self._changes = Changes(store, (paths.NAMESPACES,), self._changed, self._missed)

    async def start(self) -> None:
        """Follow the records.

        Raises:
            ConnectionLossError, SessionExpiredError: the metadata store cannot be watched.
        """
        if self.is_enabled:
            await self._changes.start()

    def stop(self) -> None:
        """Follow the records no longer. Idempotent."""
        self._changes.stop()

    def forget_all(self) -> None:
        """Read all records again when they are next needed: changes of them may have been missed."""
        self._events += 1
        self._admin_roles.clear()
        self._grants.clear()

    async def check(
        self, principal: Principal, right: Right, scope: Scope, target: str | TopicName, subscription: str | None = None
    ) -> None:
        """Check that a caller has a right. A caller behind a proxy has it if the proxy has it too.

        Args:
            target: the tenant, the namespace (also for bundles) or the topic (also for subscriptions) that is meant;
                ignored for the cluster and brokers.
            subscription: the name of the subscription of the topic that is meant; None for none in particular.

        Raises:
            NotPermittedError: the caller does not have it.
            BadRequestError: the target cannot be a name.
            ServiceNotReadyError: this broker's session is over; try again.
        """
        if not await self.permits(principal, right, scope, target, subscription):
            what = f"{scope.name.lower()} {target}".strip() if str(target) else scope.name.lower()
            log.debug("%s may not use %s: it needs the right %r", principal, what, right.value)
            raise NotPermittedError(f"{principal} needs the right {right.value!r} on the {what}", field="role")

    async def check_client(
        self,
        client: AuthorizedClient,
        right: Right,
        target: TopicName | str,
        command: str,
        subscription: str | None = None,
    ) -> None:
        """Check that a client of the binary protocol has a right on a topic, or on a namespace that is given as text.

        Args:
            command: Pulsar's name of the client's request.

        Raises:
            NotPermittedError: it has not, in Pulsar's words.
            BadRequestError, ServiceNotReadyError: as for ``check``.
        """
        principal = client.principal
        if not self.is_enabled or principal.is_internal:
            return
        scope = Scope.TOPIC if isinstance(target, TopicName) else Scope.NAMESPACE
        if not await self.permits(principal, right, scope, target, subscription):
            error = NotPermittedError(f"Client is not authorized to {command}")
            self.on_refused(principal, command, str(target), client.peer, error)
            raise error
        if right is Right.CONSUME and await self._administers(principal.role, scope, target, subscription):
            self.on_admin_read(principal, command, str(target), client.peer)

    async def check_operation(self, principal: Principal, operation: AdminOperation, arguments: dict[str, Any]) -> None:
        """Check that a caller may run an administrative operation with these arguments; raises as ``check``."""
        if not self.is_enabled or principal.is_internal:
            return
        scope, target, subscription = target_of(operation, arguments)
        await self.check(principal, operation.right, scope, target, subscription)

    async def permits(
        self, principal: Principal, right: Right, scope: Scope, target: str | TopicName, subscription: str | None = None
    ) -> bool:
        """Return whether a caller has a right; see ``check``."""
        if not self.is_enabled or principal.is_internal:
            return True
        found = _parsed(scope, target)
        if right is Right.SUPERUSER:  # no record decides that
            return _all_have(principal, Rules(self._superuser_roles), right, None)
        rules = await self._rules(found)
        if _all_have(principal, rules, right, subscription):
            return True
        self._forget(found)
        return _all_have(principal, await self._rules(found), right, subscription)

    async def _administers(self, role: str, scope: Scope, target: TopicName | str, subscription: str | None) -> bool:
        """Return whether a role that may consume is a superuser, or may only as an administrator of the tenant."""
        if role in self._superuser_roles:
            return True
        rules = replace(await self._rules(_parsed(scope, target)), admin_roles=())
        return not rules.permit(role, Right.CONSUME, subscription)

    async def _rules(self, target: TargetPlace) -> Rules:
        if not target.tenant:
            return Rules(self._superuser_roles)
        admin_roles = self._admin_roles.get(target.tenant)
        if admin_roles is None:
            events = self._events
            admin_roles = await self._read_tenant(target.tenant)
            self._remember(self._admin_roles, target.tenant, admin_roles, events)
        if not target.namespace:
            return Rules(self._superuser_roles, admin_roles)
        grants = self._grants.get(target.namespace)
        if grants is None:
            events = self._events
            grants = await self._read_namespace(target.namespace)
            self._remember(self._grants, target.namespace, grants, events)
        return Rules(self._superuser_roles, admin_roles, grants, target.topics)

    async def _read_tenant(self, name: str) -> tuple[str, ...]:
        try:
            with needs_session():
                value, _ = await self._store.get(paths.tenant(name))
        except NoNodeError:
            return ()
        return codec.decode(TenantRecord, value).admin_roles if value else ()

    async def _read_namespace(self, name: str) -> AuthPolicies:
        try:
            return (await self._catalog.policies(TopicName.parse(f"persistent://{name}/any"))).auth_policies
        except NamespaceNotFoundError:
            return AuthPolicies()

    def _remember(self, known: dict[str, Any], name: str, record: Any, events: int) -> None:
        if events != self._events:
            return
        if len(known) >= REMEMBERED_MAX:
            del known[next(iter(known))]
        known[name] = record

    def _forget(self, target: TargetPlace) -> None:
        self._admin_roles.pop(target.tenant, None)
        self._grants.pop(target.namespace, None)

    def _changed(self, event: WatchEvent) -> None:
        parts = [paths.last_part("/" + part) for part in event.path.split("/")[2:]]
        if not parts or len(parts) > 2:
            return
        self._events += 1
        name = "/".join(parts)
        self._forget(TargetPlace(parts[0], name))
        for listener in self.on_changed:
            listener(name)

    def _missed(self) -> None:
        self.forget_all()
        for listener in self.on_changed:
            listener("")


def target_of(operation: AdminOperation, arguments: dict[str, Any]) -> tuple[Scope, str, str | None]:
    """Return the target of an operation: scope and name for ``Authorizer.check``, and the subscription.

    Where the argument that names the target is None, the operation acts on all that what holds them has.

    Raises:
        BadRequestError: the argument is no text.
    """
    scope, name, subscription = operation.scope, operation.target, None
    if scope in (Scope.CLUSTER, Scope.BROKER):
        return scope, "", None
    if scope is Scope.SUBSCRIPTION:
        named = arguments[name]
        if named is not None:
            subscription = _text(name, named)
        name = "topic"
    elif scope is Scope.BUNDLE:
        name = "namespace"
    if arguments[name] is None:
        assert scope is Scope.TENANT, f"{operation.name} acts on one {scope.value}"
        return Scope.CLUSTER, "", None
    return scope, _text(name, arguments[name]), subscription


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"{name} is {value!r}", field=name, limit="a text")
    return value


def _parsed(scope: Scope, target: str | TopicName) -> TargetPlace:
    if scope in (Scope.CLUSTER, Scope.BROKER):
        return TargetPlace()
    if scope is Scope.TENANT:
        tenant = str(target)
        return TargetPlace(TopicName.parse(f"persistent://{tenant}/any/any").tenant)
    if scope in (Scope.NAMESPACE, Scope.BUNDLE):
        namespace = str(target)
        if namespace.count("/") != 1:
            raise BadRequestError(f"{namespace!r} is not of the form tenant/namespace", field="namespace")
        name = TopicName.parse(f"persistent://{namespace}/any")
        return TargetPlace(name.tenant, name.namespace)
    name = target if isinstance(target, TopicName) else TopicName.parse(target)
    return TargetPlace(name.tenant, name.namespace, tuple(dict.fromkeys((str(name), name.partitioned_name))))


def _all_have(principal: Principal, rules: Rules, right: Right, subscription: str | None) -> bool:
    return all(rules.permit(role, right, subscription) for role in principal.roles)
