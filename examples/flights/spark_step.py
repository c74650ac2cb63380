"""The Spark session of the demonstration: through RayDP, or in this process if the joined Ray cannot run Java."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from heliograph.base.errors import ResourceError
from heliograph.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "heliograph-demo"
EXECUTOR_CORES = 2
# The executor takes one of Ray's CPUs, whatever its cores, because a small Ray cluster has no more.
_EXECUTOR_CPUS = {"spark.ray.raydp_spark_executor.actor.resource.cpu": "1"}


@contextlib.contextmanager
def demo_spark(note: Callable[[str], None]) -> Iterator[SparkSession]:
    """Run a session through RayDP, or a local one, with a note, when the joined Ray cluster cannot run Java.

    Raises:
        ResourceError: Spark or Java is not installed here.
    """
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(
                spark_session(APP_NAME, executor_cores=EXECUTOR_CORES, configs=_EXECUTOR_CPUS)
            )
        except ResourceError as error:
            if error.field != "PATH":  # a local session helps only when the nodes have no Java
                raise
            note(f"[yellow]not through RayDP[/yellow]: {error}")
            note("a Spark session in this process computes the same DataFrame instead")
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
