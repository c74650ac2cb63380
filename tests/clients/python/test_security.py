"""Pulsar's Python client with tokens, rights and TLS."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.clients.python.user import CLIENT, WAIT_MS
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.secured import NAMESPACE, OTHER_KEY, PUBLISHER, USER, SecuredStack
from tests.cluster.support.broker_cluster import wait_for
from tests.unit.auth.keys import token

RENEWALS = 2
REFUSAL_SECONDS = 1
UNTIL_TIME_OUT = "nothing is let in, but the client takes the refusal for a lost connection until its time-out"


@pytest.fixture
def topic() -> str:
    return f"persistent://{NAMESPACE}/python-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def client(url: str, shown: pulsar.Authentication | None, **options: Any) -> Iterator[pulsar.Client]:
    quiet = {"operation_timeout_seconds": 30, "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    made = pulsar.Client(url, shown, **{**quiet, **options})
    try:
        yield made
    finally:
        made.close()


def good(role: str = USER) -> pulsar.Authentication:
    return pulsar.AuthenticationToken(token(role).decode())


def round_trip(with_client: pulsar.Client, topic: str) -> None:
    consumer = with_client.subscribe(topic, "s")
    with_client.create_producer(topic).send(b"hello")
    assert consumer.receive(WAIT_MS).data() == b"hello"


def test_the_right_token(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    with (
        matrix.noting(CLIENT, pulsar.__version__, "token"),
        client(secured.service_url, good()) as alice,
    ):
        round_trip(alice, topic)


def test_another_token_or_none(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    for shown in (token(key=OTHER_KEY), token(seconds=-60), b" ", None):
        authentication = None if shown is None else pulsar.AuthenticationToken(shown.decode())
        with client(secured.service_url, authentication, operation_timeout_seconds=REFUSAL_SECONDS) as stranger:
            with pytest.raises(pulsar.PulsarException):
                stranger.create_producer(topic)
            with pytest.raises(pulsar.PulsarException):
                stranger.subscribe(topic, "s")
    matrix.note(CLIENT, pulsar.__version__, "token_refused", Outcome.PARTLY, UNTIL_TIME_OUT)


def test_a_token_is_renewed_on_one_connection(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    supplied = 0

    def supply() -> str:
        nonlocal supplied
        supplied += 1
        return token(seconds=3).decode()

    with (
        matrix.noting(CLIENT, pulsar.__version__, "token_renewed"),
        client(secured.service_url, pulsar.AuthenticationToken(supply)) as alice,
    ):
        producer = alice.create_producer(topic)
        producer.send(b"first")
        before, begun_at = secured.answer({"ask": "connections"}), supplied
        while supplied < begun_at + RENEWALS:
            producer.send(b"next")
            time.sleep(0.05)
        assert secured.answer({"ask": "connections"}) == before


def test_rights_are_granted_and_revoked(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    permissions, run = secured.cluster.admin.permissions, secured.cluster.run

    def may_produce(guest: pulsar.Client) -> bool:
        try:
            guest.create_producer(topic).close()
        except pulsar.AuthorizationError:
            return False
        return True

    with (
        matrix.noting(CLIENT, pulsar.__version__, "rights"),
        client(secured.service_url, good(PUBLISHER)) as publisher,
        client(secured.service_url, good("python-guest")) as guest,
    ):
        publisher.create_producer(topic).send(b"hello")
        with pytest.raises(pulsar.AuthorizationError):
            publisher.subscribe(topic, "s")
        assert not may_produce(guest)
        run(permissions.grant(NAMESPACE, "python-guest", ["produce"]))
        wait_for(lambda: may_produce(guest), "the grant")
        run(permissions.revoke(NAMESPACE, "python-guest"))
        wait_for(lambda: not may_produce(guest), "the revocation")


def test_tls(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    def trust(authority: str) -> dict[str, Any]:
        return {"tls_trust_certs_file_path": str(secured.folder / authority), "tls_validate_hostname": True}

    with matrix.noting(CLIENT, pulsar.__version__, "tls"):
        with client(secured.service_url_tls, good(), **trust("ca.pem")) as alice:
            round_trip(alice, topic)
        deceived = secured.answer({"ask": "deceived"})
        for url, authority in (
            (secured.service_url_tls, "other-ca.pem"),
            (secured.service_url_of_another_name, "ca.pem"),
        ):
            options = {**trust(authority), "operation_timeout_seconds": REFUSAL_SECONDS}
            with client(url, good(), **options) as refused, pytest.raises(pulsar.PulsarException):
                refused.create_producer(topic)
        assert secured.answer({"ask": "deceived"}) == deceived


def test_the_certificate_is_the_role(secured: SecuredStack, topic: str, matrix: ClientMatrix) -> None:
    shown = pulsar.AuthenticationTLS(str(secured.folder / f"{USER}.pem"), str(secured.folder / f"{USER}.key"))
    authority = str(secured.folder / "ca.pem")
    with (
        matrix.noting(CLIENT, pulsar.__version__, "tls_role"),
        client(secured.service_url_tls, shown, tls_trust_certs_file_path=authority) as alice,
    ):
        round_trip(alice, topic)
        with pytest.raises(pulsar.AuthorizationError):
            alice.create_producer("persistent://public/other/t")
