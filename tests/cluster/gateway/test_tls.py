"""Brokers without a plain port: the gateway and clients reach them by TLS only, with certificates on both sides."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

import heliograph
from heliograph.base.errors import ConnectionLostError
from heliograph.base.tls.contexts import TlsFiles
from heliograph.gateway import actor
from heliograph.gateway.actor import GatewayActor
from tests.cluster.gateway.stack import Stack, running_stack
from tests.websocket import connect

HOST = "127.0.0.1"
TOPIC = "persistent/public/default/flights"


class Files:
    """The files of one certificate and of the authority that signed it."""

    def __init__(self, folder: Path, authority: trustme.CA, *names: str) -> None:
        folder.mkdir()
        self.authority = authority
        issued = authority.issue_cert(*(names or (HOST,)))
        self.ca, self.certificate, self.key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))
        authority.cert_pem.write_to_path(self.ca)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)

    @property
    def of_brokers(self) -> dict[str, Any]:
        """The settings of brokers that have no plain port and ask clients for certificates."""
        files = TlsFiles(self.certificate, self.key, self.ca, is_client_certificate_required=True)
        return {"tls": files, "tls_port": 0, "tls_only": True}

    @property
    def of_client(self) -> dict[str, str]:
        return {"tls_ca_file": self.ca, "tls_certificate_file": self.certificate, "tls_key_file": self.key}

    @property
    def of_gateway(self) -> dict[str, Any]:
        """The settings of a gateway that trusts this authority and shows this certificate, at both of its ends."""
        return {
            **self.of_client,
            "tls_require_client_certificate": True,
            "broker_tls_enabled": True,
            "broker_ca_file": self.ca,
            "broker_certificate_file": self.certificate,
            "broker_key_file": self.key,
        }

    def context(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=self.ca)
        self.authority.issue_cert("caller@example.org").configure_cert(made)
        return made


def gateway_of(stack: Stack, settings: dict[str, Any]) -> GatewayActor:
    return GatewayActor({"port": 0, "service_urls": [broker.address for broker in stack.brokers], **settings})


async def test_over_http_and_websocket_with_all_plain_ports_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path / "files", trustme.CA())
    async with running_stack(tmp_path, broker=files.of_brokers, client=files.of_client) as stack:
        assert {broker.service_url for broker in stack.brokers} == {""}
        for broker in stack.brokers:  # the port says nothing in plain text
            assert broker.service_url_tls.startswith("pulsar+ssl://")
            plain = broker.service_url_tls.replace("+ssl", "")
            with pytest.raises(ConnectionLostError):
                await heliograph.connect_async(plain, connect_timeout_ms=2_000, operation_timeout_ms=1_000)
        await stack.brokers[0].admin.create_topic(f"persistent://{TOPIC.partition('/')[2]}", partitions=4)
        monkeypatch.setattr(actor, "Admin", lambda _: stack.brokers[0].admin)  # there is no Ray to ask
        gateway = gateway_of(stack, files.of_gateway)
        url = await gateway.start()
        assert url.startswith("https://")
        try:
            await _publish_and_consume(url, files.context())
        finally:
            await gateway.stop()


async def _publish_and_consume(url: str, context: ssl.SSLContext) -> None:
    """Publish over HTTP and WebSocket, and take all of it over each of them."""
    websocket = url.replace("https://", "wss://")
    async with httpx.AsyncClient(base_url=url, verify=context, timeout=120) as http:
        body = {"messages": [{"payload": str(number), "key": str(number)} for number in range(8)]}
        answer = await http.post(f"/topics/{TOPIC}", json=body)
        assert answer.status_code == 200, answer.text
        async with connect(f"{websocket}/ws/v2/producer/{TOPIC}", ssl=context) as producer:
            await producer.send(json.dumps({"payload": base64.b64encode(b"8").decode()}))
            assert json.loads(await producer.recv())["result"] == "ok"
        wanted = sorted(map(str, range(9)))
        found: list[str] = []
        while len(found) < len(wanted):
            answer = await http.post(
                f"/topics/{TOPIC}/subscription/http/messages",
                params={"initialPosition": "earliest", "timeoutMs": 30_000},
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["messages"], found
            found += [message["payload"] for message in answer.json()["messages"]]
        assert sorted(found) == wanted
    query = "?subscriptionInitialPosition=Earliest&subscriptionType=Shared"
    async with connect(f"{websocket}/ws/v2/consumer/{TOPIC}/ws{query}", ssl=context) as consumer:
        received = [json.loads(await consumer.recv()) for _ in wanted]
        assert sorted(base64.b64decode(message["payload"]).decode() for message in received) == wanted


async def test_brokers_of_an_unknown_authority_or_another_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway does not start; and neither does one that brokers refuse, because it has no certificate."""
    monkeypatch.setattr(actor, "connect_async", partial(heliograph.connect_async, operation_timeout_ms=1_000))
    authority = trustme.CA()
    files = Files(tmp_path / "files", authority)
    elsewhere = Files(tmp_path / "elsewhere", authority, "broker.example.org")
    strangers = Files(tmp_path / "strangers", trustme.CA())

    async def refused(stack: Stack, settings: dict[str, Any], match: str) -> None:
        gateway = gateway_of(stack, settings)
        try:
            with pytest.raises(ConnectionLostError, match=match):
                await gateway.start()
        finally:
            await gateway.stop()

    trusting = {"broker_tls_enabled": True, "broker_ca_file": files.ca}
    async with running_stack(tmp_path, brokers=1, broker=files.of_brokers, client=files.of_client) as stack:
        await refused(stack, files.of_gateway | {"broker_ca_file": strangers.ca}, "certificate verify failed")
        await refused(stack, {"broker_tls_enabled": True}, "certificate verify failed")  # what the machine trusts
        await refused(stack, trusting, "no broker can be reached")
    named = elsewhere.of_brokers | {"advertised_host": HOST}
    async with running_stack(tmp_path / "b", brokers=1, broker=named | {"tls_only": False}) as stack:
        address = {"service_urls": [stack.brokers[0].service_url_tls]}
        await refused(stack, files.of_gateway | address, "IP address mismatch")


async def test_a_broker_that_speaks_tls_only_opens_no_plain_port(tmp_path: Path) -> None:
    files = Files(tmp_path / "files", trustme.CA())
    async with running_stack(tmp_path, brokers=1, broker=files.of_brokers, client=files.of_client) as stack:
        [broker] = stack.brokers
        assert broker._server.port is None
        port = int(broker.service_url_tls.rpartition(":")[2])
        with socket.create_connection((HOST, port)):
            pass
        assert broker.statistics()["service_url"] == broker.service_url_tls
