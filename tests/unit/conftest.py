"""Unit tests are pure: no Ray, and nothing that the caller's environment says of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import heliograph


@pytest.fixture(scope="session", autouse=True)
def no_cluster_is_named() -> Iterator[None]:
    """Take away the variables of the caller that name a cluster, or choose settings of one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name == "RAY_ADDRESS" or name.startswith("HELIOGRAPH_")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that starts Ray is a cluster test in the wrong folder."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a unit test called ray.init")

    monkeypatch.setattr("ray.init", refuse)


@pytest.fixture(scope="module")
def cluster() -> Iterator[heliograph.LocalCluster]:
    """Return a cluster in this process; each test of the module uses names of its own."""
    with heliograph.local() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: heliograph.LocalCluster) -> Iterator[heliograph.Client]:
    with cluster.connect() as client:
        yield client
