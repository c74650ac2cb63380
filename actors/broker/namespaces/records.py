"""The administration of tenants, namespaces and policies in metadata. Any broker may do it; no ownership is needed.

All results are plain data (JSON). Policies have the names of ``policies.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from heliograph.actors.broker.namespaces.bundles import BUNDLES_AT_FIRST_MAX, bundles_for
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.policies import (
    check_of_subscription,
    check_policies,
    effective,
    flat,
    known_policies,
    own_policies,
    with_policies,
    without_policies,
)
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.properties import changed_properties, check_new_name
from heliograph.actors.ledger.driver.placements import BUILT_IN
from heliograph.base.clock import as_numbers
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    InvalidQuorumError,
    InvalidTopicNameError,
    NamespaceNotFoundError,
    NotFoundError,
    PolicyLimitError,
    TopicNotFoundError,
)
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from heliograph.metadata.model import NamespacePolicies, PolicyValue, TenantRecord, TopicPolicies
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

SUBSCRIPTIONS_MAX = 1_000  # of one topic, with policies of their own
SUBSCRIPTION_CHARACTERS_MAX = 1_000  # of the name of one with policies of its own

Json = dict[str, Any]
Overrides = dict[str, PolicyValue]
GivenPolicies = Mapping[str, PolicyValue | timedelta]


class NamespaceRecords:
    """Creates, lists, changes and deletes records. Every method raises ServiceNotReadyError if the session is over."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        placements: Collection[str] = tuple(BUILT_IN),
        bookies_lacking: Callable[[int], Awaitable[object | None]] | None = None,
    ) -> None:
        """
        Args:
            placements: names of the placement policies that this broker has.
            bookies_lacking: says whether fewer bookies than a number take entries now; None: never.
        """
        self._store = store
        self._catalog = catalog
        self._placements = placements
        self._bookies_lacking = bookies_lacking

    # -- tenants

    async def tenants(self) -> Sequence[str]:
        """Return the names of all tenants, sorted."""
        with needs_session():
            return sorted(paths.last_part("/" + name) for name in await self._store.children(paths.NAMESPACES))

    async def tenant(self, name: str) -> Json:
        """Return ``admin_roles`` and ``allowed_clusters`` of a tenant.

        Raises:
            NotFoundError.
        """
        try:
            with needs_session():
                value, _ = await self._store.get(paths.tenant(_checked_tenant(name)))
        except NoNodeError:
            raise _no_tenant(name) from None
        record = codec.decode(TenantRecord, value) if value else TenantRecord()
        return {"admin_roles": list(record.admin_roles), "allowed_clusters": list(record.allowed_clusters)}

    async def create_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Create a tenant. Raises ConflictError: it exists; InvalidTopicNameError: a tenant cannot have that name."""
        check_new_name(name, "tenant")
        record = TenantRecord(tuple(admin_roles), tuple(allowed_clusters))
        try:
            with needs_session():
                await self._store.create(paths.tenant(_checked_tenant(name)), codec.encode(record))
        except NodeExistsError:
            raise ConflictError(f"tenant {name} exists", field="tenant") from None

    async def update_tenant(
        self, name: str, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Replace the record of a tenant. Raises NotFoundError."""
        record = TenantRecord(tuple(admin_roles), tuple(allowed_clusters))
        try:
            with needs_session():
                await self._store.set(paths.tenant(_checked_tenant(name)), codec.encode(record))
        except NoNodeError:
            raise _no_tenant(name) from None

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant. Raises NotFoundError; ConflictError: it has namespaces."""
        try:
            with needs_session():
                await self._store.delete(paths.tenant(_checked_tenant(name)))
        except NoNodeError:
            raise _no_tenant(name) from None
        except NotEmptyError:
            raise ConflictError(f"tenant {name} has namespaces; delete them first", field="tenant") from None

    # -- namespaces

    async def list(self, tenant: str | None = None) -> Sequence[str]:
        """Return all namespaces of one tenant or of all tenants as ``tenant/namespace``, sorted.

        Raises:
            NotFoundError: there is no such tenant.
        """
        tenants = await self.tenants() if tenant is None else [_checked_tenant(tenant)]
        found = []
        for name in tenants:
            try:
                with needs_session():
                    children = await self._store.children(paths.tenant(name))
            except NoNodeError:
                if tenant is not None:
                    raise _no_tenant(name) from None
                continue
            found += [f"{name}/{paths.last_part('/' + child)}" for child in children]
        return sorted(found)

    async def create(self, namespace: str, bundles: int | None = None, policies: GivenPolicies | None = None) -> None:
        """Create a namespace of an existing tenant.

        Args:
            bundles: how many bundles its topics are spread over; None: by the number of brokers that are there.
            policies: set from the start.

        Raises:
            NotFoundError: there is no such tenant.
            ConflictError: the namespace exists.
            BadRequestError, InvalidQuorumError: a value is not allowed.
            PolicyLimitError: the tenant has as many namespaces as it may; creations at once may exceed that by a few.
        """
        name = probe_of(namespace)
        check_new_name(name.namespace_name, "namespace")
        values = as_numbers(policies or {})
        await self._check(values, of_namespace=True)
        record = with_policies(NamespacePolicies(), values)
        if bundles is None:
            with needs_session():
                bundles = bundles_for(len(await self._store.children(paths.BROKERS_AVAILABLE)))
        else:
            if not isinstance(bundles, int) or isinstance(bundles, bool) or not 1 <= bundles <= BUNDLES_AT_FIRST_MAX:
                raise BadRequestError(f"{bundles!r} bundles", field="bundles", limit=f"1 to {BUNDLES_AT_FIRST_MAX}")
        record = replace(record, bundles=bundles)
        try:
            await self._check_room(name.tenant)
            with needs_session():
                await self._store.create(paths.namespace(name.tenant, name.namespace_name), codec.encode(record))
        except NoNodeError:
            raise _no_tenant(name.tenant) from None
        except NodeExistsError:
            raise ConflictError(f"namespace {namespace} exists", field="namespace") from None

    async def _check_room(self, tenant: str) -> None:
        limit = self._catalog.namespaces_per_tenant_max
        if not limit:
            return
        with needs_session():
            count = len(await self._store.children(paths.tenant(tenant)))
        if count >= limit:
            raise PolicyLimitError(
                f"tenant {tenant} may have {limit} namespaces, and has {count}",
                field="namespaces_per_tenant_max",
                limit=f"{limit} namespaces",
            )

    async def mark(self, namespace: str, **marks: bool) -> None:
        """Set a namespace's marks, or take them back: ``is_closing``, so that nothing is created in it, and
        ``is_deleted``, so that nothing in it is opened either.

        Raises:
            NamespaceNotFoundError.
        """

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            marked = replace(
                record,
                is_closing=marks.get("is_closing", record.is_closing),
                is_deleted=marks.get("is_deleted", record.is_deleted),
            )
            return None if marked == record else marked

        await self._change(namespace, change)

    async def remove(self, namespace: str) -> None:
        """Delete an empty namespace that is marked deleted; one made since then stays."""
        name = probe_of(namespace)
        path = paths.namespace(name.tenant, name.namespace_name)
        for family in (paths.topic_policies, paths.non_persistent_policies):
            await self._remove_below(family(name.tenant, name.namespace_name, "x").rpartition("/")[0])
        with contextlib.suppress(NoNodeError, BadVersionError), needs_session():
            found = await read(self._store, path, NamespacePolicies)
            if found.record.is_deleted:
                await self._store.delete(path, found.version)

    # -- policies

    async def policies(self, namespace: str, own: bool = False) -> Json:
        """Return every policy of a namespace by name, its number of ``bundles``, and ``is_closing`` while its topics
        are deleted by force; with ``own`` only the policies that were set for the namespace itself.

        Raises:
            NamespaceNotFoundError.
        """
        record = await self._catalog.policies(probe_of(namespace))
        values = flat(record)
        if own:
            return {name: values[name] for name in own_policies(record) if name in values}
        closing = {"is_closing": True} if record.is_closing else {}
        return {**values, "bundles": record.bundles, **closing}

    async def properties(self, namespace: str) -> dict[str, str]:
        """Return the properties of a namespace. Raises NamespaceNotFoundError."""
        return dict((await self._catalog.policies(probe_of(namespace))).properties)

    async def set_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a namespace.

        Raises:
            NamespaceNotFoundError.
            BadRequestError: they are no texts, or too many.
        """
        wanted = changed_properties({}, properties)
        await self._change(
            namespace, lambda record: None if record.properties == wanted else replace(record, properties=wanted)
        )

    async def update_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Set some properties of a namespace; the others stay. Raises what ``set_properties`` raises."""
        await self._change_properties(namespace, changed_properties({}, properties))

    async def remove_properties(self, namespace: str, names: Sequence[str]) -> dict[str, str]:
        """Remove some properties of a namespace; return the removed ones with their values.

        Raises:
            NamespaceNotFoundError.
        """
        before = await self._change_properties(namespace, dict.fromkeys(names))
        return {name: before[name] for name in names if name in before}

    async def _change_properties(self, namespace: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Change properties of a namespace; return the earlier values."""
        before: dict[str, str] = {}

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            wanted = changed_properties(record.properties, changes)
            before.update(record.properties)
            return None if wanted == record.properties else replace(record, properties=wanted)

        await self._change(namespace, change)
        return before

    async def set_policies(self, namespace: str, values: GivenPolicies) -> None:
        """Set some policies. Every broker soon applies them to its loaded topics.

        Raises:
            NamespaceNotFoundError, BadRequestError, InvalidQuorumError.
        """
        numbers = as_numbers(values)
        await self._check(numbers, of_namespace=True)

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            changed = with_policies(record, numbers)
            return None if changed == record else changed

        await self._change(namespace, change)

    async def remove_policies(self, namespace: str, names: Sequence[str]) -> None:
        """Reset some policies to their defaults. Raises what ``set_policies`` raises."""
        known_policies(names, of_namespace=True)

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            changed = without_policies(record, names)
            return None if changed == record else changed

        await self._change(namespace, change)

    async def topic_policies(self, topic: str, applied: bool = False, subscription: str | None = None) -> Json:
        """Return the policies that a topic, or one of its subscriptions, sets; with ``applied``, all in effect.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError.
        """
        name = await self._existing(topic)
        own = await self._catalog.topic_policies(name)
        if not applied:
            return dict(own.overrides if subscription is None else own.subscriptions.get(subscription, {}))
        created_with = await self._catalog.created_with(name)
        found = effective(await self._catalog.policies(name), own.overrides, created_with, own.subscriptions)
        return dict(flat(found if subscription is None else found.of_subscription(subscription)))

    async def subscription_policies(self, topic: str) -> dict[str, Json]:
        """Return the overrides of single subscriptions of a topic, by subscription.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError.
        """
        own = await self._catalog.topic_policies(await self._existing(topic))
        return {subscription: dict(values) for subscription, values in sorted(own.subscriptions.items())}

    async def set_topic_policies(self, topic: str, values: GivenPolicies, subscription: str | None = None) -> None:
        """Override some policies for a topic and all its partitions, or for one subscription on them.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError, BadRequestError, InvalidQuorumError.
        """
        name = await self._existing(topic)
        numbers = as_numbers(values)
        await self._check(numbers, of_namespace=False)
        if subscription is not None:
            _check_subscription(subscription, numbers)
        await self._change_topic(name, lambda found: {**found, **numbers}, subscription)

    async def remove_topic_policies(self, topic: str, names: Sequence[str], subscription: str | None = None) -> None:
        """Remove own policies of a topic or of one subscription. Raises what ``set_topic_policies`` raises."""
        name = await self._existing(topic)
        known_policies(names)

        def without(found: Overrides) -> Overrides:
            return {key: value for key, value in found.items() if key not in names}

        await self._change_topic(name, without, subscription)

    async def _change_topic(
        self, topic: TopicName, change: Callable[[Overrides], Overrides], subscription: str | None
    ) -> None:
        path = self._catalog.policies_path(topic)

        def changed(record: TopicPolicies) -> TopicPolicies | None:
            if subscription is None:
                wanted = replace(record, overrides=change(record.overrides))
            else:
                own = {**record.subscriptions, subscription: change(record.subscriptions.get(subscription, {}))}
                wanted = replace(record, subscriptions={name: values for name, values in own.items() if values})
                _check_size(wanted)
            return None if wanted == record else wanted

        with contextlib.suppress(NoNodeError), needs_session():
            await update(self._store, path, TopicPolicies, changed)
            return
        first = changed(
            await self._catalog.topic_policies(topic)
        )  # empty, or what an older version kept at another path
        if first is None:
            return
        with contextlib.suppress(NodeExistsError), needs_session():
            await self._store.create(path, codec.encode(first), parents=True)
            return
        with needs_session():
            await update(self._store, path, TopicPolicies, changed)

    async def _existing(self, topic: str) -> TopicName:
        """Return the name of an existing topic; for a partition, its partitioned topic's."""
        name = TopicName.parse(TopicName.parse(topic).partitioned_name)
        await self._catalog.policies(name)
        if not await self._catalog.partitions(name) and not await self._catalog.exists(name):
            raise TopicNotFoundError(f"there is no topic {name}", field="topic")
        return name

    async def _change(self, namespace: str, change: Any) -> NamespacePolicies:
        name = probe_of(namespace)
        path = paths.namespace(name.tenant, name.namespace_name)
        try:
            with needs_session():
                return (await update(self._store, path, NamespacePolicies, change)).record
        except NoNodeError:
            raise NamespaceNotFoundError(f"there is no namespace {namespace}", field="namespace") from None

    async def _remove_below(self, folder: str) -> None:
        with contextlib.suppress(NoNodeError), needs_session():
            for child in await self._store.children(folder):
                with contextlib.suppress(NoNodeError):
                    await self._store.delete(f"{folder}/{child}")

    async def _check(self, values: Mapping[str, PolicyValue], *, of_namespace: bool) -> None:
        """Raise BadRequestError unless the values are policies that can be met: this broker has the placement that they
        name, and the cluster as many bookies as have to acknowledge an entry. Without them no topic opens, not even to
        be deleted."""
        check_policies(values, of_namespace=of_namespace)
        placement = values.get("placement")
        if placement and placement not in self._placements:
            known = ", ".join(sorted(self._placements))
            raise BadRequestError(
                f"there is no placement {str(placement)[:80]!r}; this cluster has {known}",
                field="placement",
                limit=known,
            )
        copies = int(values.get("ack_quorum") or 0)
        if copies and self._bookies_lacking is not None and await self._bookies_lacking(copies) is not None:
            with needs_session():
                bookies = len(await self._store.children(paths.BOOKIES_COOKIES))  # also those that are down now
            if bookies < copies:
                raise InvalidQuorumError(
                    f"ack_quorum is {copies}, and the cluster has {bookies} bookies: add some first",
                    field="ack_quorum",
                    limit=f"at most {bookies}",
                )


def probe_of(namespace: str) -> TopicName:
    """Return a topic name in a namespace, which is given as ``tenant/namespace``.

    Raises:
        BadRequestError: the namespace has another form or an invalid part.
    """
    if namespace.count("/") != 1:
        raise BadRequestError(f"{namespace!r} is not of the form tenant/namespace", field="namespace")
    return TopicName.parse(f"persistent://{namespace}/any")


def _checked_tenant(name: str) -> str:
    try:
        return TopicName.parse(f"persistent://{name}/any/any").tenant
    except InvalidTopicNameError as error:
        raise InvalidTopicNameError(
            f"{name!r} is not a valid tenant name", field="tenant", limit="letters, digits and any of - _ = : ."
        ) from error


def _check_subscription(name: str, values: Mapping[str, PolicyValue]) -> None:
    if not name or len(name) > SUBSCRIPTION_CHARACTERS_MAX:
        raise BadRequestError(
            "this is no name of a subscription", field="subscription", limit=f"{SUBSCRIPTION_CHARACTERS_MAX} characters"
        )
    check_of_subscription(values)


def _check_size(record: TopicPolicies) -> None:
    if len(record.subscriptions) > SUBSCRIPTIONS_MAX:
        raise BadRequestError(
            "too many subscriptions have policies of their own", field="subscription", limit=str(SUBSCRIPTIONS_MAX)
        )


def _no_tenant(name: str) -> NotFoundError:
    return NotFoundError(f"there is no tenant {name}", field="tenant")
