"""Decisions of a broker by the records in metadata, also about callers of its actor."""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ParamSpec

import pytest

from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import INTERNAL, Credentials, Principal
from heliograph.base.errors import AuthenticationError, BadRequestError, InvalidTopicNameError, NotPermittedError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.model import AuthPolicies, NamespacePolicies, TenantRecord
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import OPERATIONS, Right, Scope
from heliograph.protocol.topic_name import TopicName
from tests.unit.auth.keys import SECRET, token
from tests.unit.broker.clients import LoneBroker

CONFIG = AuthConfig(enabled=True, superuser_roles=("root",), proxy_roles=("gate",))
GRANTS = AuthPolicies(namespace_auth={"reader": ("consume",), "gate": ("consume",)})
TOPIC = "persistent://acme/shop/orders-partition-3"
GROUPS = AdminOperations  # whose import fills the table


P = ParamSpec("P")


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*positional: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*positional, **named))

    return run


class _CountingStore:
    """A store that counts its reads."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        if name == "get":
            self.reads += 1
        return getattr(self._store, name)


async def started(grants: AuthPolicies = GRANTS, config: AuthConfig = CONFIG) -> tuple[Authorizer, _CountingStore]:
    server = MemoryServer()
    store = _CountingStore(server.open_session())
    other = server.open_session()
    await initialise(other)
    await other.create(paths.tenant("acme"), codec.encode(TenantRecord(("owner",))))
    await other.create(paths.namespace("acme", "shop"), codec.encode(NamespacePolicies(auth_policies=grants)))
    authorizer = Authorizer(config, store, Catalog(store))  # type: ignore[arg-type]
    await authorizer.start()
    return authorizer, store


async def may(authorizer: Authorizer, role: str, right: Right = Right.CONSUME, via: str = "") -> bool:
    return await authorizer.permits(Principal(role, via), right, Scope.TOPIC, TOPIC)


@in_a_loop
async def test_records_decide_and_are_read_once() -> None:
    authorizer, store = await started()
    assert await may(authorizer, "reader")
    reads = store.reads
    for _ in range(10):
        assert await may(authorizer, "reader")
    assert store.reads == reads
    assert not await may(authorizer, "reader", Right.PRODUCE)
    assert await may(authorizer, "owner", Right.TENANT_ADMIN)
    assert await may(authorizer, "root", Right.SUPERUSER)
    assert not await may(authorizer, "owner", Right.SUPERUSER)


class _Client:
    peer = "10.0.0.7:4"

    def __init__(self, role: str) -> None:
        self.principal = Principal(role)


@in_a_loop
async def test_a_read_of_an_administrator_past_the_grants_is_told() -> None:
    granted = AuthPolicies(namespace_auth={"reader": ("consume",), "deputy": ("consume",)})
    authorizer, store = await started(granted)
    await store.set(paths.tenant("acme"), codec.encode(TenantRecord(("owner", "deputy"))))  # type: ignore[operator]
    told: list[tuple[str, str, str]] = []
    authorizer.on_admin_read = lambda principal, command, target, _: told.append((principal.role, command, target))
    for target in (TopicName.parse(TOPIC), "acme/shop"):
        for role in ("reader", "deputy", "owner", "root"):
            await authorizer.check_client(_Client(role), Right.CONSUME, target, "subscribe")
    await authorizer.check_client(_Client("owner"), Right.PRODUCE, TopicName.parse(TOPIC), "produce")
    assert told == [(role, "subscribe", target) for target in (TOPIC, "acme/shop") for role in ("owner", "root")]


@in_a_loop
async def test_a_change_is_seen_at_once_in_both_directions() -> None:
    authorizer, store = await started()
    told: list[str] = []
    authorizer.on_changed.append(told.append)
    assert await may(authorizer, "reader")
    assert not await may(authorizer, "writer", Right.PRODUCE)
    changed = replace(GRANTS, namespace_auth={"writer": ("produce",)})
    await store.set(paths.namespace("acme", "shop"), codec.encode(NamespacePolicies(auth_policies=changed)))  # type: ignore[operator]
    assert await may(authorizer, "writer", Right.PRODUCE)
    assert not await may(authorizer, "reader")
    await store.set(paths.tenant("acme"), codec.encode(TenantRecord(("reader",))))  # type: ignore[operator]
    assert await may(authorizer, "reader")
    assert not await may(authorizer, "owner")
    assert told == ["acme/shop", "acme"]


@in_a_loop
async def test_a_proxy_and_its_caller_both_need_the_right() -> None:
    authorizer, _ = await started()
    assert await may(authorizer, "reader", via="gate")
    assert not await may(authorizer, "stranger", via="gate")
    assert not await may(authorizer, "owner", Right.PRODUCE, via="gate")
    assert await may(authorizer, "root", via="reader")
    assert not await may(authorizer, "gate", via="stranger")


@in_a_loop
async def test_parts_of_the_cluster_and_an_open_cluster_may_do_everything() -> None:
    authorizer, _ = await started()
    assert await authorizer.permits(INTERNAL, Right.SUPERUSER, Scope.CLUSTER, "")
    authorizer, store = await started(config=AuthConfig())
    assert await may(authorizer, "stranger", Right.SUPERUSER)
    assert store.reads == 0


@in_a_loop
async def test_a_role_by_the_name_of_the_cluster_itself_is_an_ordinary_one() -> None:
    authorizer, _ = await started()
    assert not await may(authorizer, INTERNAL.role)


@pytest.mark.parametrize(
    ("name", "arguments", "roles"),
    [
        ("namespaces.list", {"tenant": None}, {"root"}),
        ("namespaces.list", {"tenant": "acme"}, {"root", "owner"}),
        ("namespaces.tenants", {}, {"root"}),
        ("namespaces.create_tenant", {"name": "acme", "admin_roles": [], "allowed_clusters": []}, {"root"}),
        ("namespaces.create", {"namespace": "acme/new", "bundles": None, "policies": None}, {"root", "owner"}),
        ("brokers.drain", {"broker_id": "b"}, {"root"}),
        ("brokers.unload_bundle", {"namespace": "acme/shop", "bundle": "0x0_0x1"}, {"root"}),
        ("list_topics", {"namespace": "acme/shop"}, {"root", "owner", "reader"}),
        ("list_topics", {"namespace": "public/default"}, {"root"}),
        ("cursors.expire", {"topic": TOPIC, "subscription": None, "seconds": 1}, {"root", "owner", "reader"}),
        ("create_subscription", {"topic": TOPIC, "name": "s"}, {"root", "owner", "reader"}),
        ("create_topic", {"topic": TOPIC}, {"root", "owner"}),
        ("publish", {"topic": TOPIC, "payloads": []}, {"root", "owner"}),
    ],
)
@in_a_loop
async def test_operations_name_their_targets(name: str, arguments: dict[str, object], roles: set[str]) -> None:
    authorizer, _ = await started()
    allowed = set()
    for role in ("root", "owner", "reader", "stranger"):
        try:
            await authorizer.check_operation(Principal(role), OPERATIONS[name], arguments)
        except NotPermittedError:
            continue
        allowed.add(role)
    assert allowed == roles


@in_a_loop
async def test_what_is_no_name_is_refused_before_anything_is_read() -> None:
    authorizer, _ = await started()
    for scope, target in ((Scope.TOPIC, "a/b"), (Scope.NAMESPACE, "acme"), (Scope.NAMESPACE, "a/b/c")):
        with pytest.raises(BadRequestError):
            await authorizer.check(Principal("reader"), Right.CONSUME, scope, target)
    with pytest.raises(InvalidTopicNameError):
        await authorizer.check(Principal("reader"), Right.TENANT_ADMIN, Scope.TENANT, "../x")
    with pytest.raises(BadRequestError):
        await authorizer.check_operation(Principal("reader"), OPERATIONS["publish"], {"topic": 5, "payloads": []})


def actor_of(lone: LoneBroker) -> BrokerActor:
    made = BrokerActor(BrokerConfig("lone"), "memory://none")
    made._sessions = SimpleNamespace(broker=lone.broker)  # type: ignore[assignment]
    return made


def shown(role: str) -> Credentials:
    return Credentials("token", token(role))


async def test_callers_are_known_before_an_operation_runs() -> None:
    auth: dict[str, Any] = {
        "enabled": True,
        "token_secret_key": base64.b64encode(SECRET).decode(),
        "superuser_roles": ("admin",),
        "proxy_roles": ("gateway",),
    }
    async with LoneBroker(auth=AuthConfig(**auth)) as lone:
        actor = actor_of(lone)

        assert "public" in await actor.admin("namespaces.tenants", {}, shown("admin"))
        for credentials in (None, Credentials(), Credentials("token", b"x"), Credentials("basic", b"admin:x")):
            with pytest.raises(AuthenticationError, match="Failed to authenticate"):
                await actor.admin("namespaces.tenants", {}, credentials)
        for credentials, original in (
            (shown("bob"), ""),  # has no right
            (shown("gateway"), ""),  # a proxy names the caller
            (shown("bob"), "admin"),  # only a proxy may
            (shown("gateway"), "bob"),
        ):
            with pytest.raises(NotPermittedError):
                await actor.admin("namespaces.tenants", {}, credentials, original)


async def test_without_authentication_nobody_is_asked() -> None:
    async with LoneBroker() as lone:
        actor = actor_of(lone)
        assert "public" in await actor.admin("namespaces.tenants", {})
        assert "public" in await actor.admin("namespaces.tenants", {}, Credentials("token", b"x"), "bob")
