"""The Spark of the demonstration: through RayDP, or, in somebody else's Ray that runs no Java, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from heliograph.errors import ResourceError
from pipelines.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "heliograph-demo"
EXECUTOR_CORES = 2
# One of Ray's CPUs for the executor, whatever it computes with: a small Ray has no more to give.
_EXECUTOR_CPUS = {"spark.ray.raydp_spark_executor.actor.resource.cpu": "1"}


@contextlib.contextmanager
def demo_spark(note: Callable[[str], None]) -> Iterator[SparkSession]:
    """A session through RayDP; a local one when the Ray that was joined cannot run Java, which is said.

    Raises:
        ResourceError: Spark or Java is not installed here.
    """
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(
                spark_session(APP_NAME, executor_cores=EXECUTOR_CORES, configs=_EXECUTOR_CPUS)
            )
        except ResourceError as error:
            if error.field != "PATH":  # only the nodes' Java has this substitute
                raise
            note(f"[yellow]not through RayDP[/yellow]: {error}")
            note("the same DataFrame is computed by a Spark in this process instead")
            session = stack.enter_context(_local_session())
        yield session


@contextlib.contextmanager
def _local_session() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    session = builder.master(f"local[{EXECUTOR_CORES}]").appName(APP_NAME).config("spark.ui.enabled", "false")
    started = session.getOrCreate()
    try:
        yield started
    finally:
        started.stop()
