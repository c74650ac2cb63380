"""TLS at the gateway: certificates of callers, the role that one gives, and files that are renewed in place."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from websockets.exceptions import InvalidMessage, InvalidStatus

from heliograph.auth.config import AuthConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.tls import contexts
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from tests.unit.gateway.door.test_callers import AUTH, CONSUMER, MESSAGE, TOPIC, Factory, bearer
from tests.unit.gateway.world import NoParts, View, World
from tests.websocket import connect

HOST = "127.0.0.1"
REFUSED = (httpx.TransportError, ssl.SSLError, ConnectionError)  # TLS 1.3: the first read or write says so


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "CHECK_SECONDS", 0.0)


class Certificates:
    """An authority and the files of a gateway whose certificate it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        self.renew()

    def renew(self) -> None:
        issued = self.authority.issue_cert(HOST)
        issued.private_key_pem.write_to_path(str(self.folder / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(self.folder / "cert.pem"))

    @property
    def settings(self) -> dict[str, str]:
        return {
            "tls_certificate_file": str(self.folder / "cert.pem"),
            "tls_key_file": str(self.folder / "key.pem"),
            "tls_ca_file": str(self.folder / "ca.pem"),
        }

    def context(self, role: str = "", signer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return the context of a caller; with a role it shows a certificate of that name."""
        made = ssl.create_default_context()
        self.authority.configure_trust(made)
        if role:
            (signer or self.authority).issue_cert(f"{role}@example.org", common_name=role).configure_cert(made)
        return made


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


class Served:
    """A gateway on a socket, over topics in memory that note who used them."""

    def __init__(self, auth: AuthConfig, settings: dict[str, Any]) -> None:
        self.world = World()
        self.world.add()
        self.factory: Any = Factory(self.world)
        self.config = GatewayConfig(port=0, auth=auth, **settings)
        self.server = GatewayServer(self.config)

    async def __aenter__(self) -> Served:
        self.server.bind()
        world: Any = self.world
        await self.server.start(create_app(world, world, self.config, View(), NoParts(), self.factory))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    async def publish(self, context: ssl.SSLContext, **headers: str) -> int:
        async with httpx.AsyncClient(base_url=self.server.url, verify=context, headers=headers, timeout=60) as http:
            return (await http.post(TOPIC, json=MESSAGE)).status_code

    @property
    def websocket_url(self) -> str:
        return self.server.url.replace("https://", "wss://")


async def test_a_caller_without_a_certificate_is_refused_where_one_is_required(certificates: Certificates) -> None:
    settings = {**certificates.settings, "tls_require_client_certificate": True}
    async with Served(AuthConfig(), settings) as served:
        assert await served.publish(certificates.context("alice")) == 200
        for context in (certificates.context(), certificates.context("alice", trustme.CA())):
            with pytest.raises(REFUSED):
                await served.publish(context)
            with pytest.raises((*REFUSED, InvalidMessage)):
                async with connect(f"{served.websocket_url}{CONSUMER}", ssl=context):
                    pass


async def test_one_gateway_speaks_http_and_https(certificates: Certificates) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with Served(AuthConfig(), {**certificates.settings, "tls_port": port}) as served:
        assert served.server.url.startswith("http://")
        https = f"https://127.0.0.1:{port}"
        for url in (served.server.url, https):
            async with httpx.AsyncClient(base_url=url, verify=certificates.context(), timeout=60) as http:
                assert (await http.post(TOPIC, json=MESSAGE)).status_code == 200
        secure = f"wss://127.0.0.1:{port}{CONSUMER}?subscriptionInitialPosition=Earliest"
        async with connect(secure, ssl=certificates.context()) as websocket:
            assert json.loads(await websocket.recv())["payload"]
    async with httpx.AsyncClient(verify=certificates.context()) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{https}/health")
    with pytest.raises(InvalidConfigError, match="TLS needs a certificate"):
        GatewayConfig(tls_port=8443)


async def test_a_certificate_is_the_role_over_http_and_websocket(certificates: Certificates) -> None:
    async with Served(AUTH, certificates.settings) as served:
        alice = certificates.context("alice")
        assert await served.publish(alice) == 200
        async with connect(f"{served.websocket_url}{CONSUMER}?subscriptionInitialPosition=Earliest", ssl=alice) as ws:
            assert json.loads(await ws.recv())["payload"]
        assert served.factory.asked == [("alice", "producer"), ("alice", "consumer")]
        # A token counts before the certificate; without either a caller is refused.
        assert await served.publish(alice, **bearer("bob")) == 200
        assert served.factory.asked[-1] == ("bob", "producer")
        assert await served.publish(certificates.context()) == 401
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{served.websocket_url}{CONSUMER}", ssl=certificates.context()):
                pass
        assert refused.value.response.status_code == 401


async def test_the_rights_are_those_of_the_certificate(certificates: Certificates) -> None:
    async with Served(AUTH, certificates.settings) as served:
        for role, status in (("weak", 403), ("alice", 200)):
            context = certificates.context(role)
            async with httpx.AsyncClient(base_url=served.server.url, verify=context, timeout=60) as http:
                answer = await http.post("/admin/v2/persistent/public/default/flights/terminate")
                assert answer.status_code == status, answer.text


async def test_files_that_are_replaced_are_served_without_a_restart(certificates: Certificates) -> None:
    async def serial(served: Served) -> str:
        host, port = served.server.url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=certificates.context("alice"))
        found = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return str(found)

    async with Served(AuthConfig(), certificates.settings) as served:
        first = await serial(served)
        assert await serial(served) == first
        certificates.renew()
        assert await serial(served) != first
        assert await served.publish(certificates.context("alice")) == 200


async def test_a_listener_with_tls_serves_nothing_in_plain_text(certificates: Certificates) -> None:
    async with Served(AuthConfig(), certificates.settings) as served:
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient() as http:
                await http.get(served.server.url.replace("https://", "http://") + "/health")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tls_ca_file": "ca.pem"}, "tls_certificate_file"),
        ({"tls_require_client_certificate": True}, "tls_certificate_file"),
        ({"tls_certificate_file": "c", "tls_key_file": "k", "tls_require_client_certificate": True}, "tls_ca_file"),
        ({"tls_key_file": "k"}, "tls_certificate_file,tls_key_file"),
        ({"broker_certificate_file": "c"}, "broker_certificate_file,broker_key_file"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        GatewayConfig(**settings)
    assert raised.value.field == field


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    config = GatewayConfig(tls_certificate_file=str(tmp_path / "none.pem"), tls_key_file=str(tmp_path / "none.key"))
    with pytest.raises(InvalidConfigError, match=r"none\.pem"):
        GatewayServer(config)
