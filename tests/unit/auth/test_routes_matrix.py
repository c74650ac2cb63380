"""Every HTTP route, asked for without credentials, as a role without rights, and as a superuser."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from typing import Any, get_type_hints

import httpx
import jwt
from fastapi.routing import APIRoute

from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import Principal
from heliograph.base.errors import UnsupportedError
from heliograph.gateway.app import _ROUTERS, create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.backends.memory.store import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation, Right, Scope, through
from tests.unit.auth.roles import create_records
from tests.unit.gateway.world import View

SECRET = b"a secret key of at least 32 bytes!"
CONFIG = AuthConfig(
    enabled=True,
    token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
    superuser_roles=("root",),
    proxy_roles=("gate",),
)
VALUES = {"domain": "persistent", "tenant": "acme", "namespace": "shop", "topic": "orders", "role": "r"}
OPEN = re.compile(r"/$|/health$|/docs")  # pages, and whether the gateway works: for anyone
# What every named role may ask for: counters of the gateway, the name of the cluster, the parts that the role may see.
FOR_EVERY_ROLE = re.compile(
    r"/metrics$|/status$|/admin/v2/clusters$|/admin/v2/brokers/(ready|health|version|internal-configuration)$"
)


class Acting:
    """What acts for one role: it notes what the role may do, and does nothing."""

    def __init__(self, principal: Principal, authorizer: Authorizer, reached: list[str]) -> None:
        async def call(operation: AdminOperation, arguments: dict[str, Any]) -> Any:
            await authorizer.check_operation(principal, operation, arguments)
            reached.append(operation.name)
            raise UnsupportedError("it was permitted")

        everything = through(AdminOperations, call)
        for group, kind in get_type_hints(AdminOperations).items():
            if group != "call":
                setattr(everything, group, through(kind, call))
        self.admin = everything
        self._principal, self._authorizer = principal, authorizer

    async def producer(self, topic: str, **options: Any) -> Any:
        await self._authorizer.check(self._principal, Right.PRODUCE, Scope.TOPIC, topic)
        raise UnsupportedError("it was permitted")

    async def consumer(self, topic: str, subscription: str, **options: Any) -> Any:
        await self._authorizer.check(self._principal, Right.CONSUME, Scope.TOPIC, topic, subscription)
        raise UnsupportedError("it was permitted")

    reader = consumer

    async def close(self) -> None:
        pass


class Factory:
    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer
        self.reached: list[str] = []

    def client(self, principal: Principal) -> Any:
        return Acting(principal, self.authorizer, self.reached)

    def admin(self, principal: Principal) -> Any:
        return Acting(principal, self.authorizer, self.reached).admin


def requests() -> list[tuple[str, str]]:
    """Return method and path of every route, the ones outside of the document too."""
    found = []
    for router in _ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                path = re.sub(r"\{(\w+)(:\w+)?\}", lambda match: VALUES.get(match[1], "1"), route.path)
                found += [(method, path) for method in sorted((route.methods or set()) - {"HEAD"})]
    return found


async def answers(role: str) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Return the status of each request of a role, and the operations that it may run."""
    store = MemoryServer().open_session()
    await initialise(store)
    await create_records(store)
    factory = Factory(Authorizer(CONFIG, store, Catalog(store)))
    nothing: Any = None
    app = create_app(nothing, nothing, GatewayConfig(auth=CONFIG), View(), factory)
    token = jwt.encode({"sub": role, "exp": time.time() + 600}, SECRET, "HS256")
    headers = {"Authorization": f"Bearer {token}"} if role else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    found = {}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers) as http:
        for method, path in requests():
            if OPEN.match(path):
                continue
            body: dict[str, Any] = {} if method == "GET" else {"json": ["produce"]}
            found[method, path] = (await http.request(method, path, **body)).status_code
    await app.state.services.close()
    return found, factory.reached


def test_without_credentials_every_route_is_closed() -> None:
    found, reached = asyncio.run(answers(""))
    assert len(found) > 150
    assert set(found.values()) == {401}
    assert not reached


def test_a_role_without_rights_gets_nothing() -> None:
    found, reached = asyncio.run(answers("nobody"))
    assert not reached
    open_ones = {
        (method, path): status
        for (method, path), status in found.items()
        if status < 400 and not (method == "GET" and FOR_EVERY_ROLE.match(path))
    }
    assert not open_ones, open_ones


def test_a_superuser_is_refused_nothing() -> None:
    found, reached = asyncio.run(answers("root"))
    assert 403 not in found.values()
    assert 401 not in found.values()
    assert len(set(reached)) > 40
