"""Every HTTP route, asked for as every role: it is answered as the rights of the operations say that it runs.

The operations of a route are those that it runs for a superuser; what each of them needs says the table of
``test_operations_matrix``. A route that runs none has to have a rule here, and fails without one.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import re
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import jwt
import pytest
from fastapi.routing import APIRoute

from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import Principal
from heliograph.base.errors import UnsupportedError
from heliograph.gateway.app import _ROUTERS, create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.console import processors
from heliograph.gateway.sessions import task_queues
from heliograph.gateway.shapes.json_forms import id_text
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation, Right, Scope
from heliograph.protocol.message_id import MessageId
from heliograph.tasks.options import TaskOptions
from tests.unit.auth.roles import CLUSTER, CONSUME, EITHER, MAY, PRODUCE, SUBSCRIBE, SUBSCRIPTION, create_records
from tests.unit.auth.test_operations_matrix import NEEDS
from tests.unit.gateway.world import NoParts, View

pytestmark = pytest.mark.slow

SECRET = b"a secret key of at least 32 bytes!"
CONFIG = AuthConfig(
    enabled=True,
    token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
    superuser_roles=("root",),
    proxy_roles=("gate",),
)
VALUES = {
    "domain": "persistent",
    "tenant": "acme",
    "namespace": "shop",
    "topic": "orders",
    "queue": "orders",
    "subscription": SUBSCRIPTION,
    "role": "r",
    "cluster": "standalone",
    "bundle": "0x00000000_0x80000000",
    "policy": "retention",
    "name": "cacheBytes",
    "part": "auditor",
    "method": "repair_status",
    "step": "pause",
}
_MESSAGE_ID = id_text(MessageId(1, 1))
# Bodies by the end of a path, the first that matches; a list of actions otherwise, which many routes take or ignore.
BODIES: list[tuple[str, Any]] = [
    (r"^/tasks/[^?]*/orders$", {"task": "add"}),
    (r"^/topics/[^?]*/(ack|nack)$", {"messageIds": [_MESSAGE_ID]}),
    (r"^/topics/[^?]*/(orders|partitions/1)$", {"messages": [{"payload": "x"}]}),
    (r"^/topics/[^?]*/resend$", {"ids": ["1:1"], "to": "persistent://acme/shop/orders"}),
    (r"^/topics/[^?]*/retry$", {}),
    (r"/heliograph/tasks/(retry|purge)$", {"queue": "persistent://acme/shop/orders"}),
    (r"/heliograph/processors/pause$", {"name": "sums", "namespace": "acme/shop"}),
    (r"/orders/partitions$", 4),
    (r"/properties$", {"a": "b"}),
    (r"/backlogQuota$", {"limitSize": 1, "limitTime": 1, "policy": "producer_request_hold"}),
    (r"/retention$", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    (r"/dispatchRate$", {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 1, "ratePeriodInSecond": 1}),
    (r"/schema$|/compatibility$|/version$", {"type": "STRING", "schema": "", "properties": {}}),
    (r"/resetcursor$|/expireMessages$", {"ledgerId": 1, "entryId": 1}),
    (r"/subscriptionAuthMode$", "Prefix"),
    (r"/racks-info/1$", {"rack": "/r1"}),
    (r"/tenants/acme$", {"adminRoles": ["r"], "allowedClusters": ["standalone"]}),
    (r"/namespaces/acme/shop$", {}),
    (r"/persistent/acme/shop/orders$", {}),
    (r"/permissions/subscription/billing$", ["r"]),
    (r"/subscription/billing$", "latest"),
    (r"/replicatedSubscriptionStatus$", False),
]
QUERIES = {
    "GET /admin/heliograph/topics": {"namespace": "acme/shop"},
    "GET /admin/heliograph/topic": {"name": "persistent://acme/shop/orders"},
    "GET /admin/heliograph/tasks": {"namespace": "acme/shop"},
    "GET /admin/heliograph/tasks/queue": {"name": "persistent://acme/shop/orders"},
    "GET /admin/heliograph/processors": {"namespace": "acme/shop"},
    "GET /admin/heliograph/processors/processor": {"namespace": "acme/shop", "name": "sums"},
    "DELETE /admin/v2/persistent/acme/shop/orders/properties": {"key": "a"},
    "POST /admin/v2/bookies/racks-info/1": {"group": "default"},
    "GET /admin/v2/persistent/acme/shop/orders/messages/find": {"property": "a", "value": "b"},
}
# What a read operation answers, so that a route gets to the operation that it is for.
ANSWERS: dict[str, Any] = {"partitions": 0, "brokers.list": ()}
OPEN = re.compile(r"/$|/health$|/docs|/console/")  # pages, and whether the gateway works: for anyone
# What runs no operation, or is answered whatever becomes of it, and which right it needs; None: every role may ask.
RULES: list[tuple[str, str | None]] = [
    # Counters of the gateway, the name of the one cluster, the parts that the role may see.
    (r"GET /(metrics|status)$", None),
    (r"GET /admin/v2/clusters(/standalone/(peers|failureDomains(/\w+)?|migrate))?$", None),
    (r"GET /admin/v2/brokers/(ready|health|version|internal-configuration)$", None),
    (r"GET /admin/v2/(bookies/all|brokers(/standalone)?|clusters/standalone)$", CLUSTER),
    # Operations by their names need what the table says, which test_calls.py checks; parts serve superusers.
    (r"POST /admin/heliograph/operations/\w+$", None),
    # Events of Ray are published to the topic of the settings, by the right to produce there; none is set here.
    (r"POST /ray/events$", None),
    (r"POST /admin/heliograph/(report|parts(/\w+/\w+)?|wishes)$", CLUSTER),
    (r"GET /admin/heliograph/(map|audit|history)$", CLUSTER),
    (r"GET /admin/heliograph/topic$", EITHER),
    # What a role may not see of a queue is among the problems of the answer.
    (r"GET /admin/heliograph/tasks/queue$", None),
    (r"POST /admin/heliograph/tasks/(retry|purge)$", CONSUME),
    # On a subscription of its own, which nobody restricts.
    (r"POST /topics/persistent/acme/shop/orders/retry$", CONSUME),
    # The sessions of REST consume are counted by role: a caller closes its own.
    (r"DELETE /topics/persistent/acme/shop/orders/subscription/billing/consumer$", None),
]


@dataclass
class Asked:
    """What one request ran."""

    needs: list[str] = field(default_factory=list)  # what the operations need that were run, permitted or not
    done: list[str] = field(default_factory=list)  # the operations that were permitted


# Refused for every role, with the reason: it is not offered.
NOT_OFFERED = re.compile(
    r"\w+ /admin/(v[23]/)?(functions?|sources?|sinks?|worker|worker-stats|packages|transactions|resourcegroups"
    r"|resource-quotas|metadata/migration)(/1)?$|\w+ /admin/v2/clusters/standalone/namespaceIsolationPolicies(/1)?$"
    r"|(PUT|POST|DELETE) /admin/v2/clusters/standalone|POST /admin/v2/brokers/shutdown$"
    r"|\w+ /admin/v2/persistent/acme/shop/orders/(shadowTopics|offload)$"
    r"|GET /admin/v2/broker-stats/(bookieops|mbeans|allocator-stats/cacheBytes)$"
)


class Acting:
    """What acts for one role: it notes what the role may do, and does nothing."""

    def __init__(self, principal: Principal, factory: Factory) -> None:
        async def call(operation: AdminOperation, arguments: dict[str, Any]) -> Any:
            factory.asked.needs.append(need_of(operation, arguments))
            await factory.authorizer.check_operation(principal, operation, arguments)
            factory.asked.done.append(operation.name)
            if operation.name in ANSWERS:
                return ANSWERS[operation.name]
            raise UnsupportedError("it was permitted")

        self.admin = AdminOperations()
        self.admin.run_through(call)
        self._principal, self._factory = principal, factory

    async def producer(self, topic: str, **options: Any) -> Any:
        await self._check(PRODUCE, Right.PRODUCE, topic)

    async def consumer(self, topic: str, subscription: str, **options: Any) -> Any:
        await self._check(SUBSCRIBE, Right.CONSUME, topic, subscription)

    async def _check(self, need: str, right: Right, *target: str) -> None:
        self._factory.asked.needs.append(need)
        await self._factory.authorizer.check(self._principal, right, Scope.TOPIC, *target)
        self._factory.asked.done.append(need)
        raise UnsupportedError("it was permitted")

    async def reader(self, topic: str, **options: Any) -> Any:
        await self._check(CONSUME, Right.CONSUME, topic)

    async def request(self, topic: str, value: Any, **options: Any) -> Any:
        await self._check(PRODUCE, Right.PRODUCE, topic)

    async def close(self) -> None:
        pass


class Factory:
    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer
        self.asked = Asked()

    def client(self, principal: Principal) -> Any:
        return Acting(principal, self)

    def admin(self, principal: Principal) -> Any:
        return Acting(principal, self).admin


def need_of(operation: AdminOperation, arguments: dict[str, Any]) -> str:
    """Return what an operation needs by the table; on all subscriptions of a topic, it is the right on the topic."""
    need = NEEDS[operation.name]
    return CONSUME if need == SUBSCRIBE and arguments[operation.target] is None else need


def requests() -> list[tuple[str, str]]:
    """Return method and path of every route, the ones outside of the document too."""
    found = []
    for router in _ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                path = re.sub(r"\{(\w+)(:\w+)?\}", lambda match: VALUES.get(match[1], "1"), route.path)
                found += [(method, path) for method in sorted((route.methods or set()) - {"HEAD"})]
    return [(method, path) for method, path in found if not OPEN.match(path)]


def body_of(path: str) -> Any:
    return next((body for ending, body in BODIES if re.search(ending, path)), ["produce"])


Answers = dict[tuple[str, str], tuple[int, Asked]]


async def refuse_queue(client: Acting, options: TaskOptions) -> Any:
    """Open a queue of tasks as the topics of the queue allow it."""
    await client._check(PRODUCE, Right.PRODUCE, options.queue)


class NotedRegistry:
    """Opens the records of processors as the topic of the records allows it."""

    def __init__(self, client: Acting, namespace: str) -> None:
        self._client, self._topic = client, f"persistent://{namespace}/orders"

    async def __aenter__(self) -> None:
        await self._client._check(CONSUME, Right.CONSUME, self._topic)

    async def __aexit__(self, *_: object) -> None:
        """Close nothing: it is never open."""


async def answers(role: str, auth: AuthConfig = CONFIG) -> Answers:
    """Return the status of each request of a role, and what it ran."""
    store = MemoryServer().open_session()
    await initialise(store)
    await create_records(store)
    factory: Any = Factory(Authorizer(auth, store, Catalog(store)))
    nothing: Any = SimpleNamespace()
    app = create_app(nothing, nothing, GatewayConfig(auth=auth), View(), NoParts(), factory)
    token = jwt.encode({"sub": role, "exp": time.time() + 600}, SECRET, "HS256")
    headers = {"Authorization": f"Bearer {token}"} if role else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    found: Answers = {}
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers)
    own_states = mock.patch.object(TaskOptions, "states_topic", property(lambda options: options.queue))
    own_records = mock.patch.multiple(processors, Registry=NotedRegistry, RECORDS="orders")
    with mock.patch.object(task_queues, "open_queue", refuse_queue), own_states, own_records:  # grants are of one topic
        await _ask_all(client, factory, found)
    await app.state.services.close()
    return found


async def _ask_all(client: httpx.AsyncClient, factory: Factory, found: Answers) -> None:
    async with client as http:
        for method, path in requests():
            factory.asked = asked = Asked()
            given: dict[str, Any] = {} if method == "GET" else {"json": body_of(path)}
            query = QUERIES.get(f"{method} {path}")
            found[method, path] = (await http.request(method, path, params=query, **given)).status_code, asked


@functools.cache
def of_superuser() -> Answers:
    return asyncio.run(answers("root"))


def needs_of(method: str, path: str) -> list[str]:
    """Return the rights that a route needs: by its rule, or because of the operations that it runs.

    Raises:
        LookupError: it runs none, and has no rule.
    """
    for pattern, need in RULES:
        if re.match(pattern, f"{method} {path}"):
            return [need] if need else []
    if found := of_superuser()[method, path][1].needs:
        return found
    if NOT_OFFERED.match(f"{method} {path}"):
        return []
    raise LookupError(f"{method} {path}")


def test_without_credentials_every_route_is_closed() -> None:
    found = asyncio.run(answers(""))
    assert len(found) > 150
    assert {status for status, _ in found.values()} == {401}
    assert not any(asked.needs for _, asked in found.values())


def test_a_superuser_is_refused_nothing() -> None:
    statuses = {status for status, _ in of_superuser().values()}
    assert not statuses & {401, 403}
    assert len({name for _, asked in of_superuser().values() for name in asked.done}) > 60


def test_every_route_runs_an_operation_or_has_a_rule() -> None:
    without = []
    for (method, path), (status, _) in of_superuser().items():
        try:
            needs_of(method, path)
        except LookupError:
            without.append(f"{method} {path} -> {status}")
    assert not without, without


def test_what_is_not_offered_is_refused() -> None:
    for (method, path), (status, asked) in of_superuser().items():
        if not asked.needs and NOT_OFFERED.match(f"{method} {path}"):
            assert status in (404, 405, 409, 501), (method, path, status)


@pytest.mark.parametrize("role", MAY)
def test_a_role_is_refused_what_its_rights_do_not_allow(role: str) -> None:
    is_anonymous = role == "anonymous"
    auth = dataclasses.replace(CONFIG, anonymous_role="anonymous") if is_anonymous else CONFIG
    found = asyncio.run(answers("" if is_anonymous else role, auth))
    wrong = []
    for request, (status, asked) in found.items():
        needs = needs_of(*request)
        may = all(need in MAY[role] for need in needs)
        if (status == 403) == may or status == 401:
            wrong.append(f"{' '.join(request)} -> {status}, it needs {needs}")
        if not may and len(asked.done) >= len(needs):
            wrong.append(f"{' '.join(request)} was done: {asked.done}")
    assert not wrong, "\n".join(wrong)
