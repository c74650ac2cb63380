"""A cluster without plain ports that asks every client for a certificate, from its start to messages over each door."""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.tls import authority
from tests.cluster.deployment.test_cli import PATIENT, helio, helio_json
from tests.cluster.support.live_cluster import start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOPIC = "/topics/persistent/public/default/greetings"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    settings = {"tls": "auto", "tls_only": True, "tls_require_client_certificate": True, "auth": {"enabled": True}}
    name = f"tls-{uuid.uuid4().hex[:8]}"
    cluster = start(tmp_path_factory.mktemp("tls"), name, bookies=3, broker_tls_port=0, **settings)
    yield cluster.home
    cluster.stop()


def state_of(home: Path) -> ClusterState:
    state = ClusterHome(home).load()
    assert state is not None
    return state


def caller(home: Path, *, with_certificate: bool = True) -> httpx.Client:
    """Return a client of the gateway that shows the certificate of the role ``admin``, and no token."""
    files = home / "certificates"
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    if with_certificate:
        context.load_cert_chain(files / "client.pem", files / "client.key")
    return httpx.Client(base_url=state_of(home).gateway_url, verify=context, timeout=120)


def test_commands_use_the_files_that_were_made(home: Path) -> None:
    state = state_of(home)
    assert state.service_url.startswith("pulsar+ssl://")
    assert state.gateway_url.startswith("https://")
    helio("topics", "create", "greetings", "--home", home)
    helio("produce", "greetings", "hello", "--home", home)
    assert helio("consume", "greetings", "--from", "earliest", "-n", "1", *PATIENT, "--home", home) == "hello\n"
    brokers = [actor for actor in helio_json("status", "--home", home)["actors"] if actor["kind"] == "broker"]
    assert {actor["address"].partition("://")[0] for actor in brokers} == {"pulsar+ssl"}


def test_messages_pass_the_gateway_by_tls_on_both_sides(home: Path) -> None:
    with caller(home) as http:
        assert http.get("/admin/v2/tenants").status_code == 200  # the certificate's role is a superuser
        answer = http.post(TOPIC, json={"messages": [{"payload": "over https"}]})
        assert answer.status_code == 200, answer.text
        taken = http.post(
            f"{TOPIC}/subscription/s/messages", params={"initialPosition": "earliest", "timeoutMs": 30_000}
        )
        assert "over https" in [message["payload"] for message in taken.json()["messages"]]
        found = http.get("/admin/v2/clusters/standalone").json()
        assert (found["serviceUrl"], found["brokerServiceUrl"]) == ("", "")


def test_no_door_is_open_without_a_certificate(home: Path) -> None:
    with caller(home, with_certificate=False) as http, pytest.raises(httpx.TransportError):
        http.get("/health")
    state = state_of(home)
    for address in (*state.service_url.partition("://")[2].split(","), state.gateway_url.partition("://")[2]):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                answer = plain.recv(1_000)
            except ConnectionError:
                answer = b""
            assert not answer.startswith(b"HTTP/1.1 2")
            assert b"CONNECTED" not in answer


@pytest.mark.full
def test_a_certificate_that_ends_soon_is_renewed_while_the_parts_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = state_of(home).service_url.partition("://")[2].split(",")[0].rpartition(":")

    def end_shown() -> float:
        context = ssl.create_default_context(cafile=str(home / "certificates" / "ca.pem"))
        context.load_cert_chain(home / "certificates" / "client.pem", home / "certificates" / "client.key")
        with (
            socket.create_connection((host, int(port)), 30) as plain,
            context.wrap_socket(plain, server_hostname=host) as shown,
        ):
            ends = (shown.getpeercert() or {})["notAfter"]
        return ssl.cert_time_to_seconds(str(ends))

    def end_of_file() -> float:
        facts = own.facts_of("parts.pem")
        assert facts is not None
        return facts.ends.timestamp()

    own = authority.CertificateAuthority(home / "certificates")
    monkeypatch.setattr(authority, "CERTIFICATE_DAYS", 2)
    own.ensure(renew=True)
    wait_for(lambda: end_of_file() > time.time() + 300 * 86_400, 300, "the parts renew it")
    wait_for(lambda: end_shown() == end_of_file(), 60, "the broker shows the new one")
    helio("produce", "greetings", "after the renewal", "--home", home)
