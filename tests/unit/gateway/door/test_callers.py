"""Callers are authenticated if that is switched on, and each acts in its own role; agents of Ray by their address."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Self, cast

import httpx
import jwt
import pytest

from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import INTERNAL, METHOD_BASIC, METHOD_NONE, METHOD_TLS, METHOD_TOKEN, Principal
from heliograph.base.errors import AuthenticationError, NotPermittedError
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.door import credentials_of
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.sessions.agents import Agents
from tests.unit.gateway.peer import Peer
from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, NoParts, View, World

SECRET = b"a secret key of at least 32 bytes!"
TOPIC = f"/topics/{FLIGHTS_PATH}"
ADMIN = f"/admin/v2/{FLIGHTS_PATH}"
CONSUMER = f"/ws/v2/consumer/{FLIGHTS_PATH}/s"
PRODUCER = f"/ws/v2/producer/{FLIGHTS_PATH}"
MESSAGE = {"messages": [{"payload": "x"}]}
AUTH = AuthConfig(
    enabled=True,
    token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
    superuser_roles=("root",),
    proxy_roles=("gateway",),
)


def token(role: str, seconds: float = 600, key: bytes = SECRET) -> str:
    return jwt.encode({"sub": role, "exp": time.time() + seconds}, key, "HS256")


def bearer(role: str, **given: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role, **given)}"}


class RoleWorld(World):
    """The same topics for every role, and a list of who used them."""

    def __init__(self, shared: World, role: str, asked: list[tuple[str, str]]) -> None:
        super().__init__()
        self.topics = shared.topics
        self.role = role
        self.asked = asked
        self.is_closed = False
        self.addresses: list[str] = []

    def called_from(self, address: str) -> RoleWorld:
        self.addresses.append(address)
        return self

    async def producer(self, topic: str, **options: Any) -> Any:
        self.asked.append((self.role, "producer"))
        return await super().producer(topic, **options)

    async def consumer(self, topic: Any, subscription: str, **options: Any) -> Any:
        self.asked.append((self.role, "consumer"))
        return await super().consumer(topic, subscription, **options)

    async def terminate_topic(self, topic: str) -> dict[str, str]:
        self.asked.append((self.role, "terminate"))
        if self.role == "weak":
            raise NotPermittedError("weak needs the right 'tenant admin'", field="role")
        return await super().terminate_topic(topic)

    async def close(self) -> None:
        self.is_closed = True


class Factory:
    """Makes a world for each role."""

    def __init__(self, shared: World) -> None:
        self.shared = shared
        self.asked: list[tuple[str, str]] = []
        self.clients: list[RoleWorld] = []
        self.admins: list[RoleWorld] = []

    def client(self, principal: Principal) -> Any:
        made = RoleWorld(self.shared, principal.role, self.asked)
        self.clients.append(made)
        return made

    def admin(self, principal: Principal) -> AdminPort:
        self.admins.append(RoleWorld(self.shared, principal.role, self.asked))
        return self.admins[-1]


class Guarded:
    """A gateway that authenticates."""

    def __init__(self, auth: AuthConfig = AUTH, **settings: Any) -> None:
        self.world = World()
        self.world.add()
        self.factory: Any = Factory(self.world)
        config = GatewayConfig(auth=auth, **settings)
        self.app = create_app(cast(Any, self.world), self.world, config, View(), NoParts(), cast(Any, self.factory))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:8080")

    async def connect(self, path: str, role: str = "", **given: Any) -> Peer:
        peer = Peer(self.app, path, headers=bearer(role, **given) if role else {})
        await peer.upgrade()
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()
        await self.app.state.services.close()


@pytest.fixture
async def gateway() -> AsyncIterator[Guarded]:
    async with Guarded() as made:
        yield made


@pytest.mark.parametrize(
    ("forwarded", "settings", "named"),
    [
        ("203.0.113.9", {}, "127.0.0.1"),
        ("203.0.113.9", {"trusted_proxies": ("10.0.0.0/8",)}, "127.0.0.1"),
        ("203.0.113.9", {"trusted_proxies": ("127.0.0.1",)}, "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9, 10.0.0.7", {"trusted_proxies": ("127.0.0.1", "10.0.0.0/8")}, "203.0.113.9"),
        ("", {"trusted_proxies": ("127.0.0.1",)}, "127.0.0.1"),
    ],
)
async def test_brokers_are_told_the_callers_address_and_only_configured_proxies_name_another(
    forwarded: str, settings: dict[str, Any], named: str
) -> None:
    async with Guarded(**settings) as gateway:
        headers = {**bearer("root"), "X-Forwarded-For": forwarded}
        assert (await gateway.http.get(f"{ADMIN}/stats", headers=headers)).status_code == 200
        assert [admin.addresses for admin in gateway.factory.admins] == [[named]]


async def test_nobody_gets_in_without_credentials(gateway: Guarded) -> None:
    bad = [
        {},
        bearer("a", key=b"another key of at least 32 bytes!!"),
        bearer("a", seconds=-5),
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {jwt.encode({'sub': 'a'}, '', 'none')}"},
        {"Authorization": "Digest x"},
        {"Authorization": "Basic !"},
    ]
    for headers in bad:
        for method, path in (("POST", TOPIC), ("GET", f"{ADMIN}/stats"), ("GET", "/metrics"), ("GET", "/status")):
            answer = await gateway.http.request(method, path, headers=headers)
            assert answer.status_code == 401, (headers, path)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.headers["x-content-type-options"] == "nosniff"
        peer = Peer(gateway.app, CONSUMER, headers=headers)
        await peer.upgrade()
        assert peer.status == 401
    refused = await gateway.connect(f"{CONSUMER}?token=nonsense")
    assert refused.status == 401
    assert not gateway.factory.asked
    assert (await gateway.http.get(f"{ADMIN}/stats?token={token('a')}")).status_code == 401  # upgrades only


async def test_what_is_the_same_everywhere_is_open(gateway: Guarded) -> None:
    for path in ("/", "/health", "/docs", "/openapi.json", "/docs/start.js"):
        assert (await gateway.http.get(path)).status_code == 200, path
    script = re.search(r'src="(console/\w+/app\.js)"', (await gateway.http.get("/")).text)
    assert script
    assert "sessionStorage" in (await gateway.http.get(f"/{script[1]}", headers={"Accept-Encoding": "identity"})).text


async def test_each_caller_acts_in_its_own_role(gateway: Guarded) -> None:
    for role in ("alice", "bob", "alice"):
        assert (await gateway.http.post(TOPIC, headers=bearer(role), json=MESSAGE)).status_code == 200
    assert gateway.factory.asked == [("alice", "producer"), ("bob", "producer")]
    for role in ("alice", "bob"):
        url = f"{TOPIC}/subscription/s/messages?timeoutMs=0"
        assert (await gateway.http.post(url, headers=bearer(role))).status_code == 200
    assert gateway.factory.asked[2:] == [("alice", "consumer"), ("bob", "consumer")]
    weak = await gateway.http.post(f"{ADMIN}/terminate", headers=bearer("weak"))
    assert weak.status_code == 403
    assert (await gateway.http.post(f"{ADMIN}/terminate", headers=bearer("root"))).status_code == 200
    assert [role for role, what in gateway.factory.asked if what == "terminate"] == ["weak", "root"]
    closed = await gateway.http.delete(f"{TOPIC}/subscription/s/consumer", headers=bearer("carol"))
    assert closed.status_code == 404  # it is a session of another role


async def test_lists_of_the_cluster_are_for_superusers(gateway: Guarded) -> None:
    for role, status in (("alice", 403), ("root", 200)):
        assert (await gateway.http.get("/admin/v2/bookies/all", headers=bearer(role))).status_code == status
    shown = (await gateway.http.get("/status", headers=bearer("alice"))).json()
    assert shown["brokers"] == []
    assert shown["problems"]
    assert shown["parts"] == []
    assert (await gateway.http.get("/status", headers=bearer("root"))).json()["brokers"]


async def test_websockets_take_a_header_or_the_query_and_end_with_the_credentials(gateway: Guarded) -> None:
    peer = await gateway.connect(f"{PRODUCER}?token={token('alice')}")
    assert peer.status == 101
    peer.send({"payload": ""})
    assert (await peer.receive())["result"] == "ok"
    await peer.leave()
    short = await gateway.connect(CONSUMER, "bob", seconds=2.0)
    assert short.status == 101
    code, reason = await short.closed()
    assert code == 1008
    assert "credentials have ended" in reason
    assert gateway.factory.asked == [("alice", "producer"), ("bob", "consumer")]


async def test_callers_without_credentials_may_have_a_role() -> None:
    async with Guarded(
        auth=AuthConfig(enabled=True, token_secret_key=AUTH.token_secret_key, anonymous_role="nobody")
    ) as gateway:
        assert (await gateway.http.post(TOPIC, json=MESSAGE)).status_code == 200
        assert gateway.factory.asked == [("nobody", "producer")]
        assert (await gateway.http.post(TOPIC, json=MESSAGE, headers=bearer("a", seconds=-5))).status_code == 401


async def test_connections_on_behalf_of_roles_are_bounded_and_idle_ones_closed() -> None:
    world: Any = World()
    world.add()
    factory: Any = Factory(world)
    now = [0.0]
    config = GatewayConfig(auth=AUTH, principals_max=2, principal_idle_ms=1000)
    agents = Agents(world, world, factory, config, lambda: now[0])
    assert agents.client_of(INTERNAL) is world
    alice = agents.client_of(Principal("alice"))
    assert agents.client_of(Principal("alice")) is alice
    held = [await alice.producer(FLIGHTS), await agents.client_of(Principal("bob")).producer(FLIGHTS)]
    with pytest.raises(TooManySessionsError):
        agents.client_of(Principal("carol"))
    now[0] = 5.0
    await agents.expire(5.0)
    assert len(agents) == 2
    del held[0]
    agents.client_of(Principal("carol"))
    await agents.expire(5.0)
    assert [client.role for client in factory.clients if client.is_closed] == ["alice"]
    await agents.close()
    assert all(client.is_closed for client in factory.clients)


def test_what_a_request_presents() -> None:
    def of(
        *headers: tuple[bytes, bytes], kind: str = "http", query: bytes = b"", certificate: Any = None, **more: str
    ) -> Any:
        state = {"certificate": certificate} if certificate else {}
        scope = {"type": kind, "method": "GET", "path": "/", "headers": list(headers), "query_string": query}
        return credentials_of(scope | {"state": state} | more)

    basic = base64.b64encode(b"user:pass")
    name = b"authorization"
    assert (of((name, b"Basic " + basic)).method, of((name, b"Basic " + basic)).data) == (METHOD_BASIC, b"user:pass")
    assert (of((name, b"bearer x")).method, of((name, b"bearer x")).data) == (METHOD_TOKEN, b"x")
    assert of().method == METHOD_NONE
    assert of(query=b"token=x").method == METHOD_NONE
    assert of(query=b"token=x", kind="websocket").data == b"x"
    events = "/topics/persistent/public/default/flights/events"
    assert of(query=b"token=x", path=events).data == b"x"
    assert of(query=b"token=x", path=events, method="POST").method == METHOD_NONE
    assert of(query=b"token=x", path="/topics/persistent/public/default/events").method == METHOD_NONE
    assert of(certificate={"subject": ()}).method == METHOD_TLS
    assert of((name, b"Bearer x"), certificate={"subject": ()}).method == METHOD_TOKEN
    with pytest.raises(AuthenticationError):
        of((name, b"Bearer x"), (name, b"Bearer y"))


def scope(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "query_string": b"token=abc", "headers": []}


def test_a_token_in_the_address_is_taken_for_events_of_ray_alone() -> None:
    assert credentials_of(scope("POST", "/ray/events")).method == METHOD_TOKEN
    assert credentials_of(scope("POST", "/ray/events")).data == b"abc"
    assert credentials_of(scope("POST", "/topics/persistent/public/default/orders")).method != METHOD_TOKEN
