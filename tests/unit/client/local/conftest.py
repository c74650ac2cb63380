"""A cluster that the tests of this folder share, and a client of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import heliograph


@pytest.fixture(scope="session")
def cluster() -> Iterator[heliograph.LocalCluster]:
    """Return the cluster; each test has topics of its own."""
    with heliograph.local() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: heliograph.LocalCluster) -> Iterator[heliograph.Client]:
    """Return a client of the cluster."""
    with cluster.connect() as client:
        yield client
