"""``heliograph.local(secure=True)`` and ``helio dev --secure``: tokens and TLS at every door."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import heliograph
from heliograph.auth.issuing import new_token
from heliograph.base.errors import AuthenticationError, HeliographError, InvalidConfigError, NotPermittedError
from heliograph.base.home import ClusterHome
from heliograph.cluster.doctor import secrecy, stranger
from heliograph.report.asking import ask_report
from heliograph.standalone.config import StandaloneConfig
from heliograph.standalone.local import LocalCluster
from tests import tenant
from tests.unit.standalone.test_dev import helio, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with heliograph.local(tmp_path_factory.mktemp("secured"), secure=True) as cluster:
        yield cluster


def token_of(cluster: LocalCluster, role: str) -> str:
    return new_token(role, (cluster.directory / "token-secret.key").read_bytes(), "HS256")


def asked(cluster: LocalCluster, path: str, token: str = "") -> str:
    """Return what the gateway answers by https."""
    request = urllib.request.Request(cluster.http_url + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=str(cluster.directory / "certificates" / "ca.pem"))
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return str(answer.read().decode())


def test_the_administrator_and_granted_roles_are_let_in_and_nobody_else(secured: LocalCluster) -> None:
    assert secured.service_url.startswith("pulsar+ssl://")
    files = {"tls_ca_file": str(secured.directory / "certificates" / "ca.pem")}
    with secured.connect() as admin, admin.producer("orders") as producer:
        producer.send(b"1")
    with pytest.raises(AuthenticationError):
        heliograph.connect(secured.service_url, **files)
    with (
        heliograph.connect(secured.service_url, token=token_of(secured, "stranger"), **files) as client,
        pytest.raises(NotPermittedError),
    ):
        client.producer("orders").send(b"2")


def test_the_gateway_speaks_https_and_knows_its_callers(secured: LocalCluster) -> None:
    assert secured.http_url.startswith("https://")
    topics = "/admin/v2/persistent/public/default"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        asked(secured, topics)
    with pytest.raises(urllib.error.HTTPError, match=r"401|403"):
        asked(secured, topics, token_of(secured, "stranger"))
    admin = (secured.directory / "admin.token").read_text()
    assert isinstance(json.loads(asked(secured, topics, admin)), list)


def test_a_stranger_is_refused_at_every_door(secured: LocalCluster) -> None:
    state = ClusterHome(secured.directory).load()
    assert state is not None
    doors = secrecy.doors_of(state, ask_report(state, ClusterHome(secured.directory).secret()))
    doors.append(stranger.PartDoor("gateway", "gateway", secured.http_url))
    _, found = stranger.attempts(doors, secrecy.files_of(state, ClusterHome(secured.directory)))
    assert [each for each in found if each.given] == []
    assert {each.part for each in found if each.refusal} >= {"metadata", "bookie-1", "broker-1", "gateway"}
    refused = (secured.directory / "logs" / "audit-broker-1-refused.json").read_text()
    assert '"operation":"login"' in refused


def test_helio_finds_token_and_authority(state_root: Path) -> None:
    with running("--secure") as (_, printed):
        assert printed["service_url"].startswith("pulsar+ssl://")
        assert helio("produce", "greetings", standard_input="hello\n").returncode == 0
        consumed = helio("consume", "greetings", "--from", "earliest", "-n", "1")
        assert consumed.stdout == "hello\n", consumed.stderr
        listed = helio("topics", "list", "--json")
        assert "persistent://public/default/greetings" in listed.stdout, listed.stderr


def test_a_secure_cluster_may_listen_on_a_network() -> None:
    StandaloneConfig(secure=True, host="0.0.0.0")
    with pytest.raises(InvalidConfigError, match="secure and insecure"):
        StandaloneConfig(secure=True, insecure=True)


def test_a_revoked_token_is_refused_at_every_door_at_once(secured: LocalCluster) -> None:
    token, other = token_of(secured, "admin"), token_of(secured, "admin")
    ca = str(secured.directory / "certificates" / "ca.pem")
    place = f"{secured.http_url.replace('https://', 'wss://')}/ws/v2/reader/persistent/public/default/doors"
    context = ssl.create_default_context(cafile=ca)
    with (
        heliograph.connect(secured.service_url, token=token, tls_ca_file=ca) as client,
        client.producer("doors") as producer,
        connect(f"{place}?token={token}", ssl=context, open_timeout=60) as revoked_socket,
        connect(f"{place}?token={other}", ssl=context, open_timeout=60) as other_socket,
    ):
        producer.send(b"1")
        assert asked(secured, "/admin/v2/clusters", token)
        done = helio("tokens", "revoke", token, "--home", str(secured.directory))
        assert done.returncode == 0, done.stderr
        assert revoked_socket.recv(30)  # the message
        with pytest.raises(ConnectionClosed):  # the session ends, although nothing is sent
            revoked_socket.recv(30)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(secured, "/admin/v2/clusters", token)
        with pytest.raises(AuthenticationError):
            heliograph.connect(secured.service_url, token=token, tls_ca_file=ca)
        with pytest.raises(HeliographError):  # its connection was closed, and no other is made
            producer.send(b"2")
        assert asked(secured, "/admin/v2/clusters", other), "a token of the same role goes on"
        other_socket.ping().wait(30)
    listed = json.loads(helio("tokens", "revoked", "--home", str(secured.directory), "--json").stdout)
    assert [row["expires_ms"] for row in listed["revoked"]] == [None]
    assert (
        '"reason":"the token of \'admin\' has been revoked"'
        in (secured.directory / "logs" / "audit-gateway-refused.json").read_text()
    )


def test_a_tenant_with_one_right_gains_no_other_and_leaves_nothing_behind(secured: LocalCluster) -> None:
    with secured.connect() as admin:
        tenant.prepare(admin)
        ca = str(secured.directory / "certificates" / "ca.pem")
        tenant.attack(secured.service_url, token_of(secured, tenant.ROLE), tls_ca_file=ca)
        assert asked(secured, "/health")
        tenant.check_and_delete(admin)
    refused = (secured.directory / "logs" / "audit-broker-1-refused.json").read_text()
    assert f'"role":"{tenant.ROLE}"' in refused
