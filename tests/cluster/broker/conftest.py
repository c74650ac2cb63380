"""Brokers and bookies in this process for each module; ``CLUSTER`` in the module describes them."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("cluster"), **getattr(request.module, "CLUSTER", {})) as running:
        yield running


@pytest.fixture
def client(cluster: BrokerCluster) -> Iterator[pulsar.Client]:
    with cluster.client() as connected:
        yield connected
