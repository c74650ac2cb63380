"""Every administrative operation, run as every role: what the reference allows is done, and nothing else is.

``NEEDS`` repeats the right of each operation on purpose. An operation that is not in it has no rule, and fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.auth.audit import AuditLog
from heliograph.auth.config import AuditConfig
from heliograph.base.errors import NotPermittedError
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.operations.admin import GROUPS, AdminOperations
from heliograph.operations.table import OPERATIONS, AdminOperation
from tests.unit.auth.roles import (
    ADMIN,
    CLUSTER,
    CONFIG,
    CONSUME,
    EITHER,
    LIST,
    NAMESPACE,
    PRODUCE,
    SUBSCRIBE,
    SUBSCRIPTION,
    TENANT,
    TOPIC,
    callers,
    create_records,
)

NEEDS: dict[str, str] = {
    name: need
    for need, names in {
        CLUSTER: """
            namespaces.tenants namespaces.tenant namespaces.create_tenant namespaces.update_tenant
            namespaces.delete_tenant brokers.list brokers.loads brokers.check_quotas brokers.owned brokers.topics
            brokers.followed
            brokers.configuration brokers.drain brokers.undrain brokers.unload_bundle brokers.split_bundle
            brokers.unload_namespace settings.live settings.set settings.unset bookies.racks bookies.set_rack
            bookies.remove_rack permissions.revoke_token permissions.revoked_tokens
        """,
        ADMIN: """
            namespaces.list namespaces.create namespaces.delete namespaces.policies namespaces.properties
            namespaces.set_properties namespaces.set_policies namespaces.remove_policies namespaces.topic_policies
            namespaces.subscription_policies namespaces.update_properties namespaces.remove_properties
            namespaces.set_topic_policies namespaces.remove_topic_policies brokers.bundles cursors.clear_namespace
            cursors.unsubscribe_namespace permissions.granted permissions.of_namespace permissions.grant
            permissions.revoke
            permissions.of_topic permissions.grant_topic permissions.revoke_topic permissions.of_subscriptions
            permissions.grant_subscription permissions.revoke_subscription permissions.subscription_mode
            permissions.set_subscription_mode create_topic update_topic_properties remove_topic_properties topic_record
            trim_topic truncate_topic delete_topic update_partitions create_missing_partitions unload_topic
            terminate_topic compact_topic compaction_status
        """,
        PRODUCE: "publish schemas.put schemas.delete",
        CONSUME: """
            read_access read_plan subscriptions ledger_ranges topic_ledgers
            cursors.backlog_size cursors.examine cursors.message cursors.message_id_at
            cursors.last_message_id cursors.trace cursors.find
        """,
        SUBSCRIBE: """
            create_subscription delete_subscription cursors.skip cursors.skip_all cursors.expire cursors.expire_to
            cursors.reset cursors.analyze_backlog cursors.properties cursors.set_properties cursors.peek
        """,
        EITHER: """
            lookup bundle_of partitions topic_properties topic_stats topic_internal_stats schemas.get schemas.versions
            topic_history
            schemas.check schemas.version_of
        """,
        LIST: "list_topics",
    }.items()
    for name in names.split()
}
VALUES = {
    "tenant": TENANT,
    "name": TENANT,
    "namespace": NAMESPACE,
    "topic": TOPIC,
    "subscription": SUBSCRIPTION,
    "bundle": "0x00000000_0x80000000",
    "broker_id": "broker-0",
}
entries = pytest.mark.parametrize("entry", OPERATIONS.values(), ids=list(OPERATIONS))


def arguments_of(entry: AdminOperation) -> dict[str, Any]:
    """Return arguments by which an operation names its target; the others do not matter."""
    found: dict[str, Any] = {}
    hints = get_type_hints(entry.method)
    for name, parameter in entry.signature.parameters.items():
        if name in VALUES:
            found[name] = SUBSCRIPTION if (name, entry.scope.name) == ("name", "SUBSCRIPTION") else VALUES[name]
        elif parameter.default is inspect.Parameter.empty:
            kind = get_origin(hints[name]) or hints[name]
            if kind is UnionType and str in get_args(hints[name]):
                kind = str
            found[name] = {str: "x", Sequence: [], Mapping: {}}.get(kind, 1)
    return found


def service(done: list[str]) -> AdminService:
    """Return an administration whose operations only note that they were run."""
    made = object.__new__(AdminService)
    made._turns = {}

    async def note(operation: AdminOperation, arguments: dict[str, Any]) -> None:
        done.append(operation.name)

    everything = AdminOperations()
    everything.run_through(note)
    for name, entry in OPERATIONS.items():
        if not entry.group:
            setattr(made, name, getattr(everything, name))
    for group in GROUPS:
        setattr(made, group, getattr(everything, group))
    return made


async def outcomes(entry: AdminOperation) -> tuple[set[str], set[str]]:
    """Return the callers who may run an operation by the reference, and those who ran it."""
    server = MemoryServer()
    store = server.open_session()
    await initialise(store)
    await create_records(store)
    done: list[str] = []
    admin = service(done)
    catalog, audit = Catalog(store), AuditLog(AuditConfig(), "b")
    authorizer = Authorizer(CONFIG, store, catalog)
    await authorizer.start()
    admin._context = SimpleNamespace(authorizer=authorizer, audit=audit, catalog=catalog)  # type: ignore[assignment]
    expected, allowed = set(), set()
    for caller in callers():
        if NEEDS[entry.name] in caller.may:
            expected.add(str(caller))
        before = len(done)
        try:
            await admin.run(entry.name, arguments_of(entry), caller.principal)
        except NotPermittedError:
            assert len(done) == before, "a refused operation was run"
            continue
        assert done[before:] == [entry.name]
        allowed.add(str(caller))
    return expected, allowed


def test_every_operation_has_a_rule() -> None:
    assert set(NEEDS) == set(OPERATIONS)


@entries
def test_an_operation_is_run_for_those_who_have_the_right(entry: AdminOperation) -> None:
    expected, allowed = asyncio.run(outcomes(entry))
    assert allowed == expected
    assert "root" in expected
    assert "nobody" not in expected
