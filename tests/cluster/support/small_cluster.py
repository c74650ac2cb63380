"""A real cluster for a test module: its own Ray, three bookies and one broker, gone at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heliograph.base.home import ClusterHome
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.lifecycle import down, up
from tests.patience import START_SECONDS

NAMESPACE = "heliograph"


@contextmanager
def small_cluster(directory: Path) -> Iterator[ClusterConfig]:
    """Run a cluster for the length of the block; this process is in its Ray meanwhile."""
    config = ClusterConfig(
        namespace=NAMESPACE,
        home=directory,
        brokers=1,
        gateway=False,
        auditor=False,
        broker_port=0,
        dashboard_port=0,
        start_timeout_ms=START_SECONDS * 1_000,
    )
    try:
        up(config)
        yield config
    finally:
        if ClusterHome(directory).load() is not None:
            down(ClusterHome(directory), delete_data=True)
