"""The cluster and the Spark session of all Spark tests: a session of RayDP takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import heliograph
from heliograph.cluster.config import ClusterConfig
from tests.cluster.support.small_cluster import small_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterConfig]:
    with small_cluster(tmp_path_factory.mktemp("cluster")) as config:
        yield config


@pytest.fixture(scope="session")
def spark(cluster: ClusterConfig) -> Iterator[SparkSession]:
    from heliograph.pipelines.spark.session import spark_session

    tested = str(Path(heliograph.__file__).parents[1])  # executors import the package under test, not an installed one
    with spark_session("heliograph-tests", configs={"spark.executorEnv.PYTHONPATH": tested}) as session:
        yield session
