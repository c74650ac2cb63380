"""What ``client.admin`` answers to bad input: an error with a class, in a sentence, and never the status of HTTP."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import heliograph
from heliograph.base.errors import (
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ConnectionLostError,
    HeliographError,
    NamespaceNotFoundError,
    NotFoundError,
    NotPermittedError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.client.sync.client import Client

HELIO = Path(sys.executable).with_name("helio")
STATUS = re.compile(r"\b[45]\d\d\b|HTTP")


def refusal(call: Callable[[], object]) -> HeliographError:
    """Return the error that a call ends with."""
    with pytest.raises(HeliographError) as raised:
        call()
    assert not STATUS.search(str(raised.value))
    assert str(raised.value)
    return raised.value


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with heliograph.local() as cluster, cluster.connect() as client:
        yield client


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[heliograph.LocalCluster]:
    with heliograph.local(tmp_path_factory.mktemp("secured"), secure=True) as cluster:
        with cluster.connect() as client:
            client.admin.create_topic("orders")
        yield cluster


@pytest.fixture
def bob(secured: heliograph.LocalCluster) -> Iterator[Client]:
    """Return a client in a role without a right."""
    key = secured.directory / "token-secret.key"
    command: list[str | Path] = [HELIO, "tokens", "create", "--subject", "bob", "--secret-key", str(key)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    with secured.connect(token=made.stdout.strip()) as client:
        yield client


WITHOUT_RIGHTS: dict[str, Callable[[Client], object]] = {
    "create": lambda client: client.admin.create_topic("x"),
    "statistics": lambda client: client.admin.topic_stats("orders"),
    "list": lambda client: client.admin.list_topics(),
    "tenants": lambda client: client.admin.namespaces.list("public"),
    "policies": lambda client: client.admin.namespaces.set_policies("public/default", {"max_topics": 1}),
    "settings": lambda client: client.admin.settings.set("default_retention_seconds", "1"),
    "what is not there": lambda client: client.admin.topic_stats("nosuch"),
}


@pytest.mark.parametrize("call", WITHOUT_RIGHTS.values(), ids=WITHOUT_RIGHTS)
def test_a_call_without_the_right_names_it(bob: Client, call: Callable[[Client], object]) -> None:
    found = refusal(lambda: call(bob))
    assert isinstance(found, NotPermittedError)
    assert str(found).startswith("bob needs the right")
    assert found.field == "role"


def test_credentials_that_are_refused(secured: heliograph.LocalCluster) -> None:
    assert isinstance(refusal(lambda: secured.connect(token="nonsense")), AuthenticationError)


GONE: dict[str, tuple[type[HeliographError], Callable[[Client], object]]] = {
    "statistics": (TopicNotFoundError, lambda client: client.admin.topic_stats("gone")),
    "delete": (NotFoundError, lambda client: client.admin.delete_topic("gone")),
    "unload": (TopicNotFoundError, lambda client: client.admin.unload_topic("gone")),
    "terminate": (TopicNotFoundError, lambda client: client.admin.terminate_topic("gone")),
    "grow": (TopicNotFoundError, lambda client: client.admin.update_partitions("gone", 4)),
    "ledgers": (TopicNotFoundError, lambda client: client.admin.topic_ledgers("gone")),
    "skip": (NotFoundError, lambda client: client.admin.cursors.skip_all("gone", "s")),
    "position": (NotFoundError, lambda client: client.admin.cursors.reset("gone", "s", "earliest")),
    "subscription": (NotFoundError, lambda client: client.admin.cursors.skip_all("stays", "nosuch")),
    "namespace": (NamespaceNotFoundError, lambda client: client.admin.list_topics("public/gone")),
    "tenant": (NotFoundError, lambda client: client.admin.namespaces.list("nosuch")),
    "schema": (NotFoundError, lambda client: client.admin.schemas.get("stays")),
    "broker": (NotFoundError, lambda client: client.admin.brokers.drain("nosuch")),
    "exists": (TopicExistsError, lambda client: client.admin.create_topic("stays")),
    "name": (BadRequestError, lambda client: client.admin.create_topic("a b://x")),
    "policy": (BadRequestError, lambda client: client.admin.namespaces.set_policies("public/default", {"nosuch": 1})),
    "not empty": (ConflictError, lambda client: client.admin.namespaces.delete("public/default")),
}


@pytest.mark.parametrize(("kind", "call"), GONE.values(), ids=GONE)
def test_what_is_gone_is_said_to_be(
    client: Client, kind: type[HeliographError], call: Callable[[Client], object]
) -> None:
    with contextlib.suppress(TopicExistsError):
        client.admin.create_topic("stays")
    assert isinstance(refusal(lambda: call(client)), kind)


def test_a_page_token_ages_without_an_error(client: Client) -> None:
    """It is the name of the last topic of a page: the next page begins behind it, whether it is still there or not."""
    admin = client.admin
    admin.namespaces.create("public/aged")
    names = [f"persistent://public/aged/t{number}" for number in range(4)]
    for name in names:
        admin.create_topic(name)
    [first, token] = [str(each["name"]) for each in admin.list_topics("public/aged", limit=2)]
    assert [first, token] == names[:2]
    admin.delete_topic(token)
    admin.create_topic("persistent://public/aged/t05")  # before it: in no later page
    assert [each["name"] for each in admin.list_topics("public/aged", after=token)] == names[2:]


def test_a_page_token_that_is_none_is_refused(client: Client) -> None:
    client.admin.create_topic("zz")
    assert isinstance(refusal(lambda: client.admin.list_topics(after="a b://x")), BadRequestError)
    assert client.admin.list_topics(after="zz") == client.admin.list_topics(after="persistent://public/default/zz")


@pytest.mark.slow
def test_a_cluster_that_is_away() -> None:
    connect: Any = partial(cast(Any, heliograph.connect), operation_timeout_ms=1_000)
    with heliograph.local() as cluster:
        client = connect(cluster.service_url)
        client.admin.create_topic("orders")
    with client:
        found = refusal(lambda: client.admin.topic_stats("orders"))
        assert isinstance(found, ConnectionLostError)
        assert cluster.service_url.rpartition("/")[2] in str(found)
    assert isinstance(refusal(lambda: connect("pulsar://127.0.0.1:1").admin.list_topics()), ConnectionLostError)
