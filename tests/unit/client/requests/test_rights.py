"""The rights of callers and responders in a cluster that asks for tokens; by the protocol and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import heliograph
from heliograph.auth.issuing import new_token
from heliograph.base.errors import NotPermittedError, RequestTimeoutError

NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[heliograph.LocalCluster]:
    with heliograph.local(tmp_path_factory.mktemp("secured") / "home", secure=True) as running:
        with running.connect() as client:
            client.admin.create_topic("asked")
            client.admin.permissions.grant(NAMESPACE, "both", ["produce", "consume"])
            client.admin.permissions.grant(NAMESPACE, "producer", ["produce"])
        yield running


def token_of(cluster: heliograph.LocalCluster, role: str) -> str:
    return new_token(role, (cluster.directory / "token-secret.key").read_bytes(), "HS256")


def client_of(cluster: heliograph.LocalCluster, role: str) -> heliograph.Client:
    trusted = str(cluster.directory / "certificates" / "ca.pem")
    return heliograph.connect(cluster.service_url, token=token_of(cluster, role), tls_ca_file=trusted)


def test_a_role_of_the_namespace_asks_and_answers(secured: heliograph.LocalCluster) -> None:
    with client_of(secured, "both") as client, client.respond("asked", bytes.upper):
        assert client.request("asked", "hello", timeout=60) == b"HELLO"
        url = f"{secured.http_url}/topics/persistent/public/default/asked?reply=wait&replyTimeoutMs=60000"
        headers = {"Content-Type": "text/plain", "Authorization": f"Bearer {token_of(secured, 'both')}"}
        answer = httpx.post(url, content="hello", headers=headers, verify=False, timeout=60)
        assert (answer.status_code, answer.json()["payload"]) == (200, "HELLO")
        headers["Authorization"] = f"Bearer {token_of(secured, 'producer')}"
        answer = httpx.post(url, content="hello", headers=headers, verify=False, timeout=60)
        assert answer.status_code == 403


def test_a_role_that_may_not_consume_gets_no_replies(secured: heliograph.LocalCluster) -> None:
    with client_of(secured, "producer") as client:
        with pytest.raises(NotPermittedError):
            client.request("asked", "hello", timeout=60)
        with pytest.raises(NotPermittedError):
            client.respond("asked", bytes.upper)


def test_nobody_answers_a_request_that_nobody_consumes(secured: heliograph.LocalCluster) -> None:
    with client_of(secured, "both") as client, pytest.raises(RequestTimeoutError):
        client.request("asked", "hello", timeout=0.2)
