"""Pulsar's own Python client, and ours, against a broker that asks who they are; the broker runs on a thread."""

from __future__ import annotations

import base64
import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import trustme
from passlib.hash import apr_md5_crypt

import heliograph
from heliograph.auth.config import AuthConfig
from heliograph.base.errors import AuthenticationError, HeliographError
from heliograph.base.tls.contexts import TlsFiles
from tests.cluster.support.broker_cluster import wait_for
from tests.cluster.support.served_broker import ServedBroker
from tests.unit.auth.keys import SECRET, token

TOPIC = "persistent://public/default/work-0"  # owned from the start
CHECK_SECONDS = 2.0  # the time that a client has to show a new token, on a busy machine


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Path:
    directory = tmp_path_factory.mktemp("auth")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    issued = {
        "server": authority.issue_cert("localhost", "127.0.0.1"),
        "alice": authority.issue_cert("alice.test", common_name="alice"),
    }
    for name, made in issued.items():
        made.private_key_pem.write_to_path(str(directory / f"{name}.key"))
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(directory / f"{name}.pem"), append=True)
    (directory / "users").write_text(f"alice:{apr_md5_crypt.hash('right')}\n")
    return directory


@pytest.fixture(scope="module")
def broker(files: Path) -> Iterator[ServedBroker]:
    auth = AuthConfig(
        enabled=True,
        token_secret_key=base64.b64encode(SECRET).decode(),
        basic_file=str(files / "users"),
        superuser_roles=("alice",),
        refresh_check_seconds=CHECK_SECONDS,
    )
    tls = TlsFiles(str(files / "server.pem"), str(files / "server.key"), str(files / "ca.pem"))
    served = ServedBroker(auth=auth, tls=tls, tls_port=0)
    yield served
    served.stop()


def round_trip(client: pulsar.Client, subscription: str) -> None:
    consumer = client.subscribe(TOPIC, subscription)
    client.create_producer(TOPIC).send(b"hello")
    assert consumer.receive(60_000).data() == b"hello"


QUIET = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), "operation_timeout_seconds": 60}


def test_the_right_token_produces_and_consumes(broker: ServedBroker) -> None:
    client = pulsar.Client(broker.url, pulsar.AuthenticationToken(token().decode()), **QUIET)
    round_trip(client, "token")
    client.close()


@pytest.mark.parametrize(
    "shown",
    [{}, {"token": token(key=b"another key of 32 bytes or more!").decode()}, {"user": "alice", "password": "wrong"}],
)
def test_a_wrong_one_fails_at_the_first_operation(
    broker: ServedBroker, shown: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The C++ client below Pulsar's takes a refused CONNECT for a lost connection and goes on until its time is up."""
    authentication = {
        "token": lambda: pulsar.AuthenticationToken(shown["token"]),
        "user": lambda: pulsar.AuthenticationBasic("alice", "wrong"),
    }.get(next(iter(shown), ""), lambda: None)()
    client = pulsar.Client(broker.url, authentication, **{**QUIET, "operation_timeout_seconds": 1})
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(TOPIC)
    client.close()
    with pytest.raises(AuthenticationError, match="Failed to authenticate"):
        heliograph.connect(broker.url, **shown)
    assert "refused" in caplog.text
    assert "eyJ" not in caplog.text, "no part of a token is in the log"


def test_user_and_password(broker: ServedBroker) -> None:
    client = pulsar.Client(broker.url, pulsar.AuthenticationBasic("alice", "right"), **QUIET)
    round_trip(client, "basic")
    client.close()
    with heliograph.connect(broker.url, user="alice", password="right") as ours:
        assert ours.partitions(TOPIC) == 0


def test_the_certificate_is_the_role(broker: ServedBroker, files: Path) -> None:
    shown = pulsar.AuthenticationTLS(str(files / "alice.pem"), str(files / "alice.key"))
    trust = {"tls_trust_certs_file_path": str(files / "ca.pem"), **QUIET}
    client = pulsar.Client(broker.url_tls, shown, **trust)
    client.get_topic_partitions(TOPIC)
    client.close()
    with heliograph.connect(
        broker.url_tls,
        tls_ca_file=str(files / "ca.pem"),
        tls_certificate_file=str(files / "alice.pem"),
        tls_key_file=str(files / "alice.key"),
    ) as ours:
        ours.ping()
    with pytest.raises(AuthenticationError, match="Failed to authenticate"):
        heliograph.connect(broker.url_tls, tls_ca_file=str(files / "ca.pem"))


def test_a_handle_that_lost_its_token_does_not_become_the_role_of_its_certificate(
    broker: ServedBroker, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HELIOGRAPH_TOKEN", raising=False)
    monkeypatch.delenv("HELIOGRAPH_TOKEN_FILE", raising=False)
    with heliograph.connect(
        broker.url_tls,
        token=token("bob").decode(),
        tls_ca_file=str(files / "ca.pem"),
        tls_certificate_file=str(files / "alice.pem"),
        tls_key_file=str(files / "alice.key"),
    ) as ours:
        ours.ping()
        with (
            pickle.loads(pickle.dumps(ours)) as copied,
            pytest.raises(AuthenticationError, match="pickles hold no token"),
        ):
            copied.ping()


def test_a_token_of_three_seconds_with_a_supplier_keeps_one_connection(broker: ServedBroker) -> None:
    """Both clients are asked again while they publish, and answer in time."""
    asked = {"stock": 0, "ours": 0}

    def supply(name: str) -> str:
        asked[name] += 1
        return token(seconds=3).decode()

    client = pulsar.Client(broker.url, pulsar.AuthenticationToken(lambda: supply("stock")), **QUIET)
    producer = client.create_producer(TOPIC)
    with heliograph.connect(broker.url, token=lambda: supply("ours")) as ours, ours.producer(TOPIC) as published:
        published.send(b"x")
        before = broker.connections_total
        while min(asked.values()) < 3:
            producer.send(b"x")
            published.send(b"x")
            time.sleep(0.1)
    client.close()
    assert broker.connections_total == before


def test_a_token_that_is_not_renewed_ends_the_connection(
    broker: ServedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    once = token(seconds=4).decode()
    with heliograph.connect(broker.url, token=once) as ours:
        ours.ping()

        def is_refused() -> bool:
            try:
                ours.partitions(TOPIC)
            except HeliographError as error:
                return "Failed to authenticate" in str(error)
            return False

        wait_for(is_refused, "the end of the connection")
    assert once not in caplog.text
