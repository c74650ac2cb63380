"""The administration of tenants, namespaces and policies in metadata. Any broker may do it; no ownership is needed.

All results are plain data (JSON). Policies have the names of ``policies.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heliograph.actors.broker.namespaces.bundles import BUNDLES_MAX
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.policies import (
    check_policies,
    effective,
    flat,
    known_policies,
    own_policies,
    with_policies,
    without_policies,
)
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.ledger.driver.config import load_placement
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    InvalidConfigError,
    InvalidTopicNameError,
    NamespaceNotFoundError,
    NotFoundError,
    TopicNotFoundError,
)
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError, NotEmptyError
from heliograph.metadata.model import NamespacePolicies, PolicyValue, TenantRecord, TopicPolicies
from heliograph.metadata.recipes.update_loop import update
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

PROPERTIES_BYTES_MAX = 64 * 1024  # of one namespace

Json = dict[str, Any]
Overrides = dict[str, PolicyValue]


class NamespaceRecords:
    """Creates, lists, changes and deletes records. Every method raises ServiceNotReadyError if the session is over."""

    def __init__(self, store: MetadataStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog

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

    async def create(
        self, namespace: str, bundles: int | None = None, policies: Mapping[str, PolicyValue] | None = None
    ) -> None:
        """Create a namespace of an existing tenant.

        Args:
            bundles: how many bundles its topics are spread over; None for the default.
            policies: set from the start.

        Raises:
            NotFoundError: there is no such tenant.
            ConflictError: the namespace exists.
            BadRequestError, InvalidQuorumError: a value is not allowed.
        """
        name = probe_of(namespace)
        values = dict(policies or {})
        _check(values, of_namespace=True)
        record = with_policies(NamespacePolicies(), values)
        if bundles is not None:
            if not isinstance(bundles, int) or isinstance(bundles, bool) or not 1 <= bundles <= BUNDLES_MAX:
                raise BadRequestError(f"{bundles!r} bundles", field="bundles", limit=f"1 to {BUNDLES_MAX}")
            record = replace(record, bundles=bundles)
        try:
            with needs_session():
                await self._store.create(paths.namespace(name.tenant, name.namespace_name), codec.encode(record))
        except NoNodeError:
            raise _no_tenant(name.tenant) from None
        except NodeExistsError:
            raise ConflictError(f"namespace {namespace} exists", field="namespace") from None

    async def mark_deleted(self, namespace: str, is_deleted: bool = True) -> None:
        """Mark a namespace as deleted, so that nothing in it is created or opened, or take the mark back.

        Raises:
            NamespaceNotFoundError.
        """
        await self._change(
            namespace,
            lambda record: None if record.is_deleted == is_deleted else replace(record, is_deleted=is_deleted),
        )

    async def remove(self, namespace: str) -> None:
        """Delete an empty namespace that is marked deleted."""
        name = probe_of(namespace)
        path = paths.namespace(name.tenant, name.namespace_name)
        for family in (paths.topic_policies, paths.non_persistent_policies):
            await self._remove_below(family(name.tenant, name.namespace_name, "x").rpartition("/")[0])
        with contextlib.suppress(NoNodeError), needs_session():
            await self._store.delete(path)

    # -- policies

    async def policies(self, namespace: str, own: bool = False) -> Json:
        """Return every policy of a namespace by name, and its number of ``bundles``; with ``own`` only the policies
        that were set for the namespace itself.

        Raises:
            NamespaceNotFoundError.
        """
        record = await self._catalog.policies(probe_of(namespace))
        values = flat(record)
        if own:
            return {name: values[name] for name in own_policies(record) if name in values}
        return {**values, "bundles": record.bundles}

    async def properties(self, namespace: str) -> dict[str, str]:
        """Return the properties of a namespace. Raises NamespaceNotFoundError."""
        return dict((await self._catalog.policies(probe_of(namespace))).properties)

    async def set_properties(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a namespace.

        Raises:
            NamespaceNotFoundError.
            BadRequestError: they are no texts, or too many.
        """
        _check_properties(properties)
        wanted = dict(properties)
        await self._change(
            namespace, lambda record: None if record.properties == wanted else replace(record, properties=wanted)
        )

    async def set_policies(self, namespace: str, values: Mapping[str, PolicyValue]) -> None:
        """Set some policies. Every broker soon applies them to its loaded topics.

        Raises:
            NamespaceNotFoundError, BadRequestError, InvalidQuorumError.
        """
        _check(values, of_namespace=True)

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            changed = with_policies(record, values)
            return None if changed == record else changed

        await self._change(namespace, change)

    async def remove_policies(self, namespace: str, names: Sequence[str]) -> None:
        """Reset some policies to their defaults. Raises what ``set_policies`` raises."""
        known_policies(names, of_namespace=True)

        def change(record: NamespacePolicies) -> NamespacePolicies | None:
            changed = without_policies(record, names)
            return None if changed == record else changed

        await self._change(namespace, change)

    async def topic_policies(self, topic: str, applied: bool = False) -> Json:
        """Return a topic's own policies; with ``applied``, all policies that hold for the topic.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError.
        """
        name = await self._existing(topic)
        overrides = (await self._catalog.topic_policies(name)).overrides
        if not applied:
            return dict(overrides)
        created_with = await self._catalog.created_with(name)
        return dict(flat(effective(await self._catalog.policies(name), overrides, created_with)))

    async def set_topic_policies(self, topic: str, values: Mapping[str, PolicyValue]) -> None:
        """Override some policies for a topic and all its partitions.

        Raises:
            TopicNotFoundError, NamespaceNotFoundError, BadRequestError, InvalidQuorumError.
        """
        name = await self._existing(topic)
        _check(values, of_namespace=False)
        await self._change_topic(name, lambda found: {**found, **values})

    async def remove_topic_policies(self, topic: str, names: Sequence[str]) -> None:
        """Remove some of a topic's own policies. Raises what ``set_topic_policies`` raises."""
        name = await self._existing(topic)
        known_policies(names)
        await self._change_topic(name, lambda found: {key: value for key, value in found.items() if key not in names})

    async def _change_topic(self, topic: TopicName, change: Callable[[Overrides], Overrides]) -> None:
        path = self._catalog.policies_path(topic)

        def changed(record: TopicPolicies) -> TopicPolicies | None:
            overrides = change(record.overrides)
            return None if overrides == record.overrides else TopicPolicies(overrides)

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
        """Return the name of an existing topic; for a partition, that of its partitioned topic."""
        name = TopicName.parse(TopicName.parse(topic).partitioned_name)
        await self._catalog.policies(name)
        if not await self._catalog.partitions(name) and not await self._catalog.exists(name):
            raise TopicNotFoundError(f"there is no topic {name}", field="topic")
        return name

    async def _change(self, namespace: str, change: Any) -> None:
        name = probe_of(namespace)
        path = paths.namespace(name.tenant, name.namespace_name)
        try:
            with needs_session():
                await update(self._store, path, NamespacePolicies, change)
        except NoNodeError:
            raise NamespaceNotFoundError(f"there is no namespace {namespace}", field="namespace") from None

    async def _remove_below(self, folder: str) -> None:
        with contextlib.suppress(NoNodeError), needs_session():
            for child in await self._store.children(folder):
                with contextlib.suppress(NoNodeError):
                    await self._store.delete(f"{folder}/{child}")


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


def _check_properties(properties: Mapping[str, str]) -> None:
    if not all(isinstance(text, str) for pair in properties.items() for text in pair):
        raise BadRequestError("properties must be texts", field="properties")
    if sum(len(text.encode()) for pair in properties.items() for text in pair) > PROPERTIES_BYTES_MAX:
        raise BadRequestError("the properties are too large", field="properties", limit=f"{PROPERTIES_BYTES_MAX} bytes")


def _no_tenant(name: str) -> NotFoundError:
    return NotFoundError(f"there is no tenant {name}", field="tenant")


def _check(values: Mapping[str, PolicyValue], *, of_namespace: bool) -> None:
    """Raise BadRequestError unless the values are valid policies and this broker has the placement that they name."""
    check_policies(values, of_namespace=of_namespace)
    placement = values.get("placement")
    try:
        if placement:
            load_placement(str(placement))
    except InvalidConfigError as error:
        raise BadRequestError(str(error), field="placement") from error
