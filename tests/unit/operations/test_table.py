"""The table of administrative operations against everything that serves them or calls by them."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.admin.bookies import BookieAdminService
from heliograph.actors.broker.admin.brokers import BrokerAdminService
from heliograph.actors.broker.admin.cursors import CursorAdminService
from heliograph.actors.broker.admin.namespaces import NamespaceAdminService
from heliograph.actors.broker.admin.permissions import PermissionAdminService
from heliograph.actors.broker.admin.schemas import SchemaAdminService
from heliograph.actors.broker.admin.settings import SettingAdminService
from heliograph.actors.broker.admin.topics import OwnedTopics
from heliograph.base.errors import BadRequestError, TopicExistsError
from heliograph.cli.relays import RELAYS
from heliograph.client.admin.admin import Admin, AdminSync
from heliograph.client.admin.blocking import FORMS
from heliograph.metadata.model import Persistence
from heliograph.operations import answer
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import OPERATIONS, AdminOperation, Owner, Right, Scope, operation_of

ROOT = Path(__file__).parents[3]
SERVICES: dict[str, type] = {
    "": AdminService,
    "bookies": BookieAdminService,
    "brokers": BrokerAdminService,
    "cursors": CursorAdminService,
    "namespaces": NamespaceAdminService,
    "permissions": PermissionAdminService,
    "schemas": SchemaAdminService,
    "settings": SettingAdminService,
}
BLOCKING: dict[str, type] = {"": AdminSync, **FORMS}
GROUPS: dict[str, type] = {"": AdminOperations, **get_type_hints(AdminOperations)}
entries = pytest.mark.parametrize("entry", OPERATIONS.values(), ids=list(OPERATIONS))


def shape(method: Any) -> list[tuple[str, Any]]:
    parameters = inspect.signature(method).parameters.values()
    return [(parameter.name, parameter.default) for parameter in parameters if parameter.name != "self"]


def methods(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind, inspect.iscoroutinefunction) if not name.startswith("_")}


def test_every_group_is_in_the_table() -> None:
    declared = {
        (group, name) for group, kind in GROUPS.items() if isinstance(kind, type) and group != "call"
        for name in methods(kind)
    }  # fmt: skip
    assert declared == {(entry.group, entry.method_name) for entry in OPERATIONS.values()}


@entries
def test_an_entry_is_complete(entry: AdminOperation) -> None:
    assert inspect.getdoc(entry.method)
    hints = get_type_hints(entry.method)
    assert set(hints) == {*entry.signature.parameters, "return"}
    assert (entry.target in entry.signature.parameters) == (entry.scope is not Scope.CLUSTER)
    assert ("topic" in entry.signature.parameters) or entry.owner is Owner.NOT_NEEDED
    if entry.scope in (Scope.SUBSCRIPTION, Scope.BUNDLE):
        outer = {Scope.SUBSCRIPTION: "topic", Scope.BUNDLE: "namespace"}[entry.scope]
        assert outer in entry.signature.parameters
    if entry.scope in (Scope.CLUSTER, Scope.BROKER, Scope.BUNDLE):
        assert entry.right is Right.SUPERUSER
    assert entry.is_repeatable or entry.fulfilled_by is None


@entries
def test_a_client_has_every_operation_in_both_forms(entry: AdminOperation) -> None:
    for kind in (Admin if not entry.group else GROUPS[entry.group], BLOCKING[entry.group]):
        method = getattr(kind, entry.method_name)
        assert operation_of(method) is entry
        assert shape(method) == shape(entry.method)
        assert inspect.getdoc(method) == inspect.getdoc(entry.method)
    assert inspect.iscoroutinefunction(getattr(GROUPS[entry.group], entry.method_name))
    assert not inspect.iscoroutinefunction(getattr(BLOCKING[entry.group], entry.method_name))


@entries
def test_the_broker_serves_every_operation(entry: AdminOperation) -> None:
    """A service has a method of the same arguments and defaults, or the owner has a method of the same name."""
    served = getattr(SERVICES[entry.group], entry.method_name)
    if operation_of(served) is None:
        assert shape(served) == shape(entry.method)
        return
    assert entry.owner is not Owner.NOT_NEEDED, f"nothing serves {entry.name}"
    nothing: Any = SimpleNamespace(topics=None)
    at_owner = OwnedTopics(nothing, nothing, nothing)._methods[entry.method_name]
    assert [name for name, _ in shape(at_owner)][1:] == [name for name in entry.signature.parameters if name != "topic"]


def calls(folder: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call ``....admin.operation(...)`` or ``....admin.group.operation(...)`` below a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            *_, before, last = ["", "", *ast.unparse(node.func.value).split(".")]
            if last == "admin" and node.func.attr == "call":
                continue  # of an operation that its caller names
            if last == "admin":
                yield node.func.attr, node
            elif before == "admin":
                yield f"{last}.{node.func.attr}", node


@pytest.mark.parametrize("folder", ["gateway", "heliograph/cli", "heliograph/cluster", "pipelines"])
def test_callers_name_operations_and_arguments_that_exist(folder: str) -> None:
    for name, node in calls(folder):
        if name == "topic_pages":  # many calls of an operation
            signature = inspect.signature(AdminOperations().topic_pages)
        else:
            signature = OPERATIONS[name].signature
        named = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
        signature.bind(*node.args, **named)


def test_routes_and_commands_are_seen_by_the_test_above() -> None:
    routed = {name for name, _ in calls("gateway/admin")}
    assert {"create_topic", "cursors.peek", "namespaces.policies", "brokers.bundles", "schemas.put"} <= routed
    by_command = {name for name, _ in calls("heliograph/cli/admin")}
    assert {"create_topic", "cursors.peek", "schemas.put"} <= by_command
    assert not by_command & {relay.operation for relay in RELAYS.values()} - {"brokers.bundles"}


def test_only_what_must_not_happen_twice_is_not_repeated() -> None:
    assert {name for name, entry in OPERATIONS.items() if not entry.is_repeatable} == {"publish", "cursors.skip"}


def test_rights_follow_what_is_changed() -> None:
    by_right: dict[Right, set[str]] = {}
    for name, entry in OPERATIONS.items():
        by_right.setdefault(entry.right, set()).add(name)
    assert {"publish", "schemas.put", "schemas.delete"} == by_right[Right.PRODUCE]
    assert {"brokers.drain", "namespaces.create_tenant", "brokers.split_bundle"} <= by_right[Right.SUPERUSER]
    assert {"lookup", "partitions", "topic_stats", "list_topics"} <= by_right[Right.PRODUCE_OR_CONSUME]
    assert {"create_topic", "unload_topic", "namespaces.set_policies"} <= by_right[Right.TENANT_ADMIN]
    consume = {name for name, entry in OPERATIONS.items() if entry.scope is Scope.SUBSCRIPTION}
    assert consume <= by_right[Right.CONSUME]


def test_arguments_are_bound_checked_and_made_plain() -> None:
    create = OPERATIONS["create_topic"]
    assert create.bind("t", persistence={"ack_quorum": 2}) == {
        "topic": "t", "partitions": 0, "persistence": {"ack_quorum": 2}, "properties": None,
    }  # fmt: skip
    assert create.fulfilled_by is TopicExistsError
    assert OPERATIONS["publish"].bind("t", (b"a",)) == {"topic": "t", "payloads": [b"a"], "keys": None}
    with pytest.raises(TypeError):
        create.bind()
    for count in (-1, True, "1", 1_001):
        with pytest.raises(BadRequestError) as caught:
            OPERATIONS["cursors.peek"].bind("t", "s", count)
        assert (caught.value.field, caught.value.limit) == ("count", "0 to 1000")


def test_a_method_that_is_not_overridden_hands_the_entry_to_call() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def call(operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        asked.append((operation.name, arguments))
        return 3

    class Everything(AdminOperations):
        def __init__(self) -> None:
            self.call = call

    assert asyncio.run(Everything().partitions("t")) == 3
    assert asked == [("partitions", {"topic": "t", "may_create": False})]


def test_a_broker_refuses_what_is_not_in_the_table() -> None:
    service = object.__new__(AdminService)
    for name, arguments in (("visit_topic", {"topic": "t"}), ("lookup", {}), ("lookup", {"topic": "t", "force": True})):
        with pytest.raises(BadRequestError):
            asyncio.run(service.run(name, arguments))


def test_a_long_answer_is_packed_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": f"t{number}", "partitions": number} for number in range(70)] + [Persistence(3, 2, 2)]
    for count in (0, 1, 10, 11, 20, 71):
        monkeypatch.setattr(answer, "PACKED_AT_ONCE_MAX", 1_000)
        whole = answer.packed_value(rows[:count])
        monkeypatch.setattr(answer, "PACKED_AT_ONCE_MAX", 10)
        assert answer.packed_value(rows[:count]) == whole
