"""One cluster for all tests of the session that ask for it: starting one takes longer than most of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.support.live_cluster import LiveCluster, start
from tests.patience import patience


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patience():
        yield


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Use ``cluster``."""
    running = start(tmp_path_factory.mktemp("cluster"), f"test-{uuid.uuid4().hex[:8]}")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def cluster(started_cluster: LiveCluster) -> LiveCluster:
    """Four bookies, two brokers, auditor and gateway. A test leaves them as many as it found."""
    started_cluster.attach()
    return started_cluster


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"
