"""Which pages, host names and media types the gateway takes requests from, and the headers of its answers."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest

from heliograph.base.errors import InvalidConfigError
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.origins import AllowedOrigins
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.peer import Peer
from tests.unit.gateway.test_server import run as run_served
from tests.unit.gateway.test_server import started
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, World
from tests.websocket import connect

EVIL = {"Origin": "https://evil.example"}
CONSUMER = f"/ws/v2/consumer/{FLIGHTS_PATH}/s"
PRODUCER = f"/ws/v2/producer/{FLIGHTS_PATH}"
TOPIC = f"/topics/{FLIGHTS_PATH}"
ADMIN = f"/admin/v2/{FLIGHTS_PATH}"
MESSAGE = {"messages": [{"payload": "x"}]}


FOREIGN = (
    ("POST", TOPIC),
    ("POST", f"{ADMIN}/terminate"),
    ("DELETE", "/admin/v2/tenants/public?force=true"),
    ("GET", "/admin/v2/tenants"),
    ("GET", f"{ADMIN}/stats"),
    ("OPTIONS", TOPIC),
    ("GET", "/"),
)


async def test_a_page_of_another_origin_gets_nothing(topic: FakeTopic, gateway: Gateway) -> None:
    """A page that a developer has open reaches loopback; its origin is refused before anything is done."""
    for method, path in FOREIGN:
        answer = await gateway.http.request(method, path, headers=EVIL, json=MESSAGE if method == "POST" else None)
        assert answer.status_code == 403, path
        assert "https://evil.example" in answer.json()["reason"]
        assert answer.json()["field"] == "Origin"
        assert "access-control-allow-origin" not in answer.headers
    assert not topic.messages
    assert not topic.is_terminated


async def test_a_page_of_another_origin_gets_no_websocket(topic: FakeTopic, gateway: Gateway) -> None:
    for path in (CONSUMER, PRODUCER, "/ws/v3/consumer/s?topics=a"):
        peer = Peer(gateway.app, path, headers=EVIL)
        await peer.upgrade()
        assert peer.status == 403
        assert peer.body["field"] == "Origin"
    assert not topic.subscriptions


async def test_origins_that_look_like_the_gateways_own_are_refused(gateway: Gateway) -> None:
    for origin in ("null", "http://127.0.0.1:3000", "http://127.0.0.1.evil.example:8080", "x", ""):
        assert (await gateway.http.get("/health", headers={"Origin": origin})).status_code == 403, origin


OWN = ("http://127.0.0.1:8080", "http://localhost:8080", "http://[::1]:8080", "https://127.0.0.1:8080")


async def test_the_gateways_own_pages_are_served(gateway: Gateway) -> None:
    """A proxy that ends TLS makes the page's scheme https, and the gateway sees plain HTTP."""
    gateway.world.add()
    for origin in OWN:
        assert (await gateway.http.post(TOPIC, headers={"Origin": origin}, json=MESSAGE)).status_code == 200
        peer = Peer(gateway.app, PRODUCER, headers={"Origin": origin})
        await peer.upgrade()
        assert peer.status == 101
        await peer.leave()


HOSTS = (
    ("evil.example", 421),
    ("evil.example:8080", 421),
    ("127.0.0.1.evil.example", 421),
    ("localhost.evil.example", 421),
    ("", 421),
    ("[::1", 421),
    ("127.0.0.1:8080", 204),
    ("[::1]:8080", 204),
    ("10.0.0.7", 204),  # an address is no name, which a stranger could let point here
    ("localhost", 204),
    ("LOCALHOST.:8080", 204),
    ("gateway.example.org", 204),
    ("a.pulsar.example.org:8080", 204),
    ("pulsar.example.org", 421),
)


async def test_names_of_other_hosts_are_refused() -> None:
    """A name of a stranger that resolves to this address makes its page one of the gateway's own origin."""

    async with Gateway(allowed_hosts=("gateway.example.org", "*.pulsar.example.org")) as gateway:
        for host, status in HOSTS:
            gateway.world.topics.clear()
            answer = await gateway.http.put(ADMIN, headers={"Host": host})
            assert answer.status_code == status, host
            assert bool(gateway.world.topics) == (status == 204)
            if status == 421:
                assert answer.json()["field"] == "Host"
                assert "allowed_hosts" in answer.json()["reason"]
                peer = Peer(gateway.app, CONSUMER, headers={"Host": host})
                await peer.upgrade()
                assert peer.status == 421


async def test_what_a_page_loads_without_saying_its_origin_is_refused(gateway: Gateway) -> None:
    """A picture or a script of another site names no origin; the browser still says from where it was asked for."""
    await gateway.world.namespaces.begin()
    for site in ("cross-site", "same-site"):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert (await gateway.http.get("/admin/v2/tenants", headers=headers)).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await gateway.http.get("/", headers=link)).status_code == 200
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert (await gateway.http.get("/admin/v2/tenants", headers=own)).status_code == 200


MEDIA_TYPES = (
    ("application/json", 200),
    ("Application/JSON; charset=utf-8", 200),
    ("application/vnd.partitioned-topic-metadata+json", 200),
    ("text/plain", 200),  # one message; a form of another site can send it, and its origin is refused
    ("application/x-www-form-urlencoded", 415),
    ("multipart/form-data; boundary=x", 415),
    ("application/octet-stream", 200),
    ("", 415),
)


async def test_a_form_of_another_site_is_refused_also_where_the_browser_sends_no_origin(gateway: Gateway) -> None:
    topic = gateway.world.add()
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Content-Type": "text/plain"}
    answer = await gateway.http.post(TOPIC, content=b"x", headers=sent)
    assert (answer.status_code, answer.json()["field"]) == (403, "Sec-Fetch-Site")
    assert topic.messages == []


async def test_bodies_of_calls_have_to_be_called_json(gateway: Gateway) -> None:
    for media_type in ("text/plain", "application/octet-stream", "application/x-ndjson", ""):
        answer = await gateway.http.put(f"{ADMIN}/partitions", content=b"3", headers={"Content-Type": media_type})
        assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type")


async def test_bodies_have_to_be_called_what_they_are(topic: FakeTopic, gateway: Gateway) -> None:
    for media_type, status in MEDIA_TYPES:
        topic.messages.clear()
        headers = {"Content-Type": media_type}
        answer = await gateway.http.post(TOPIC, content=b'{"messages": [{"payload": "x"}]}', headers=headers)
        assert answer.status_code == status, media_type
        assert len(topic.messages) == (1 if status == 200 else 0)
        if status == 415:
            assert answer.json()["field"] == "Content-Type"
            assert "application/json" in answer.json()["reason"]
        assert (await gateway.http.post(f"{ADMIN}/trim", headers=headers)).status_code == 204  # there is no body


async def test_pages_of_configured_origins_are_served() -> None:
    app = "https://app.example.org"

    async with Gateway(allowed_origins=(app,)) as gateway:
        gateway.world.add()
        asked = {
            "Origin": app,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        preflight = await gateway.http.options(TOPIC, headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == app
        assert preflight.headers["access-control-allow-credentials"] == "true"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"].lower() == "authorization, content-type, last-event-id"
        assert int(preflight.headers["access-control-max-age"]) > 0
        assert preflight.headers["vary"] == "Origin"
        for path, status in ((TOPIC, 200), (f"{TOPIC}-unknown", 404)):
            answer = await gateway.http.post(path, headers={"Origin": app}, json=MESSAGE)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == app
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert answer.headers["vary"] == "Origin"
        assert (await gateway.http.options(TOPIC, headers={**asked, **EVIL})).status_code == 403
        peer = Peer(gateway.app, PRODUCER, headers={"Origin": app})
        await peer.upgrade()
        assert peer.status == 101
        await peer.leave()


async def test_any_origin_is_served_without_credentials() -> None:
    """A browser refuses an answer with credentials to any origin, and the gateway does not offer one."""

    async with Gateway(allowed_origins=("*",)) as gateway:
        answer = await gateway.http.get("/health", headers=EVIL)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_origins": ("app.example.org",)},
        {"allowed_origins": ("https://app.example.org/",)},
        {"allowed_origins": ("https://*.example.org",)},
        {"allowed_hosts": ("http://gateway",)},
        {"allowed_hosts": ("a.*.example.org",)},
        {"trusted_proxies": ("proxy.example.org",)},
        {"trusted_proxies": ("*",)},
    ],
)
def test_settings_that_match_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        GatewayConfig(**settings)
    assert caught.value.field == next(iter(settings))


def test_the_name_of_the_listener_is_a_name_of_the_gateway() -> None:
    allowed = AllowedOrigins(GatewayConfig(host="pulsar.example.org"))
    assert allowed.takes_host("pulsar.example.org:8080")
    assert not allowed.takes_host("other.example.org:8080")


async def test_every_answer_forbids_what_a_browser_would_guess(gateway: Gateway) -> None:
    def check(headers: httpx.Headers) -> None:
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        scripts = next((part for part in policy.split("; ") if part.startswith("script-src")), "")
        assert "unsafe" not in scripts
        assert "http" not in policy
        assert "server" not in headers

    for path in ("/", "/status", "/docs", "/openapi.json", "/nowhere", "/admin/v2/tenants"):
        check((await gateway.http.get(path)).headers)


async def test_the_page_of_the_interface_needs_no_internet(gateway: Gateway) -> None:
    page = await gateway.http.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("<!doctype html>", "").replace("<html", "").replace("</html>", "")
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(parts) == 4
    for part in parts:
        answer = await gateway.http.get(f"/{part}")
        assert answer.status_code == 200
        assert answer.content


def test_the_query_of_an_upgrade_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Clients that cannot set headers give their token in the query."""
    caplog.set_level(logging.DEBUG)
    root = logging.getLogger()
    assert root.isEnabledFor(logging.INFO)

    async def scenario() -> None:
        world = World()
        world.add()
        server = await started(world)
        url = server.url.replace("http", "ws")
        async with connect(f"{url}{PRODUCER}?token=secret-of-the-query", logger=logging.Logger("unseen")):
            pass
        with pytest.raises(Exception, match="404"):
            await connect(f"{url}{PRODUCER}-unknown?token=secret-of-the-query", logger=logging.Logger("unseen"))
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            await http.get("/nowhere?token=secret-of-the-query", headers={"Host": "evil.example"})
        await server.stop()

    logging.getLogger("httpx").setLevel(logging.WARNING)  # the test's own client
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    run_served(scenario())
    assert "secret-of-the-query" not in caplog.text
