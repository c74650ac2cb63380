"""One cluster in this process and one Spark session for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import heliograph

# Elsewhere than in its own environment, nothing here can be imported.
collect_ignore_glob = [] if version("pyspark") >= "4" else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("cluster")
    os.environ["HELIOGRAPH_HOME"] = str(home)
    try:
        with heliograph.local(home) as running:
            yield running
    finally:
        del os.environ["HELIOGRAPH_HOME"]


@pytest.fixture(scope="session")
def client(cluster: Any) -> Iterator[Any]:
    with heliograph.connect(cluster.service_url) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark(cluster: Any) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from heliograph.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(heliograph.__file__).parents[1])  # workers import the package under test
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
