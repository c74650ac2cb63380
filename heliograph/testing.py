"""A plugin of pytest: clusters in the process of the tests, real ones, and a topic of its own for each test.

pytest loads it by itself where Heliograph is installed; it costs nothing until a test asks for a fixture.

    def test_orders_arrive(heliograph_client, heliograph_topic):
        heliograph_client.producer(heliograph_topic).send(b"hello")
        reader = heliograph_client.reader(heliograph_topic, start="earliest")
        assert reader.receive(timeout=10).value == b"hello"

=============================  ========  ==============================================================
fixture                        scope     is
=============================  ========  ==============================================================
``heliograph_cluster``         session   the cluster that all tests share
``heliograph_client``          session   a client of it
``heliograph_topic``           function  the name of a topic of it that no other test has
``heliograph_module_cluster``  module    a cluster of the module's own
``heliograph_own_cluster``     function  a cluster of the test's own, for a test that stops it, for example
=============================  ========  ==============================================================

Each cluster is a ``heliograph.LocalCluster`` in a temporary directory, which its end deletes. A conftest.py overrides
``heliograph_settings`` (session scope) to give them other settings: the arguments of ``heliograph.local``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client
    from heliograph.standalone.local import LocalCluster

TEST_NAME_CHARACTERS_MAX = 80  # of a topic's name
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


@pytest.fixture(scope="session")
def heliograph_settings() -> dict[str, Any]:
    """Return the arguments of ``heliograph.local`` for all clusters of the session."""
    return {}


@pytest.fixture(scope="session")
def heliograph_cluster(heliograph_settings: dict[str, Any]) -> Iterator[LocalCluster]:
    """Return the cluster that all tests share. It starts when the first test asks for it."""
    yield from _running(heliograph_settings)


@pytest.fixture(scope="module")
def heliograph_module_cluster(heliograph_settings: dict[str, Any]) -> Iterator[LocalCluster]:
    """Return a cluster of the module's own."""
    yield from _running(heliograph_settings)


@pytest.fixture
def heliograph_own_cluster(heliograph_settings: dict[str, Any]) -> Iterator[LocalCluster]:
    """Return a cluster of the test's own."""
    yield from _running(heliograph_settings)


@pytest.fixture(scope="session")
def heliograph_client(heliograph_cluster: LocalCluster) -> Iterator[Client]:
    """Return a client of the shared cluster."""
    with heliograph_cluster.connect() as client:
        yield client


@pytest.fixture
def heliograph_topic(request: pytest.FixtureRequest, heliograph_cluster: LocalCluster) -> str:
    """Return the name of a topic of the shared cluster that no other test has. The first use creates the topic."""
    name = _UNFIT.sub("-", request.node.name)[:TEST_NAME_CHARACTERS_MAX].strip("-")
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"


def _running(settings: dict[str, Any]) -> Iterator[LocalCluster]:
    from heliograph.standalone.local import local

    with local(**settings) as cluster:
        yield cluster
