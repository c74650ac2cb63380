"""The Spark session on the Ray cluster, through RayDP, with the settings that Java 17 and Arrow need."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import ResourceError
from heliograph.client import discovery
from heliograph.pipelines.spark.java import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 1
EXECUTOR_CORES = 1
EXECUTOR_MEMORY = "512M"

# Arrow and Spark's conversion from and to Ray use reflection on these packages. If one is missing, the error is far
# from its cause ("Object at idx 0 was not stored").
_OPENED_PACKAGES = (
    *(
        f"java.base/{package}"
        for package in (
            "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.math",
            "java.text", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch",
            "sun.security.action",
        )
    ),
    "java.sql/java.sql",
)  # fmt: skip
JAVA_OPTIONS = " ".join(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES)
_JAVA_OPTION_KEYS = (
    "spark.ray.raydp_app_master.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.driver.extraJavaOptions",
)
# Starting a Python worker takes a second, so a small table must not have 200 shuffle partitions.
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def start_spark(
    app_name: str = "heliograph",
    *,
    executors: int = EXECUTORS,
    executor_cores: int = EXECUTOR_CORES,
    executor_memory: str = EXECUTOR_MEMORY,
    configs: Mapping[str, str] | None = None,
    namespace: str | None = None,
) -> SparkSession:
    """Start a Spark session whose executors are Ray actors; one per process.

    The executors run in the Ray cluster that this process has joined, otherwise in that of the Heliograph cluster,
    which this process then joins.

    ``JAVA_HOME``, ``PATH`` and ``PYSPARK_PYTHON`` are set in this process's environment, where Spark's driver looks
    for them. Options for Java 17 are set through Spark's settings, so that they also apply to executors on nodes that
    were started elsewhere.

    Args:
        executors: the number of Ray actors, each with ``executor_cores`` of Ray's CPUs and ``executor_memory`` (in
            Java's notation: ``512M``, ``2G``).
        configs: Spark settings, which override the defaults here.
        namespace: the cluster's Ray namespace; None: the namespace that ``heliograph.connect`` uses.

    Raises:
        ResourceError: the extra [spark] is not installed, no Java can be found, or a Ray node was started without
            Java; names what is missing. Nothing was started.
        ClusterNotFoundError: this process has joined no Ray cluster, and no Heliograph cluster was found.
    """
    require_spark()
    _prepare_environment()
    discovery.attach(discovery.namespace_or_noted(namespace))
    _require_java_on_nodes()
    import raydp  # imported here because it starts Spark's JVM gateway

    settings = _DEFAULTS | dict(configs or {})
    for key in _JAVA_OPTION_KEYS:
        settings[key] = f"{JAVA_OPTIONS} {settings.get(key, '')}".strip()
    session: SparkSession = raydp.init_spark(
        app_name,
        num_executors=executors,
        executor_cores=executor_cores,
        executor_memory=executor_memory,
        configs=settings,
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def stop_spark() -> None:
    """Stop the session of ``start_spark`` and its Ray actors. Do nothing when there is none."""
    if find_spec("raydp") is not None:
        import raydp

        raydp.stop_spark()


@contextmanager
def spark_session(app_name: str = "heliograph", **options: Any) -> Iterator[SparkSession]:
    """Run a Spark session for the duration of a ``with`` block; takes and raises the same as ``start_spark``.

    An error of the block is raised as it is; if the session cannot be stopped after it, a note of the error says so.
    """
    session = start_spark(app_name, **options)
    try:
        yield session
    except BaseException as error:
        try:
            stop_spark()
        except Exception as failure:  # of Py4J, Spark or Ray: often the reason of both is the same
            error.add_note(f"and the Spark session did not stop: {type(failure).__name__}: {failure}")
        raise
    stop_spark()


def require_spark() -> None:
    """Raise ResourceError, naming what to install, unless Spark and RayDP are installed."""
    missing = [name for name in ("pyspark", "raydp", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise ResourceError(
            f"{', '.join(missing)} not installed: pip install 'heliograph-ray[spark]'", field=missing[0]
        )


def _prepare_environment() -> None:
    os.environ.update(java_environment(os.environ))
    if shutil.which("java") is None:
        raise ResourceError(
            "no Java was found: set JAVA_HOME to a Java 11 or 17, or pip install 'heliograph-ray[spark]', "
            "which installs one",
            field="JAVA_HOME",
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])


def _require_java_on_nodes() -> None:
    """Raise ResourceError unless every Ray node can run Java workers.

    A raylet that was started without Java aborts, with its node, when a Java driver registers with it.
    """
    import ray  # the data source of Spark 4 does without
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check = ray.remote(num_cpus=0)(_node_runs_java)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    pins = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    answers = [check.options(scheduling_strategy=pin).remote() for pin in pins]
    without = [node for node, runs_java in zip(nodes, ray.get(answers), strict=True) if not runs_java]
    if without:
        raise ResourceError(
            f"{len(without)} of {len(nodes)} Ray nodes were started without Java, so they cannot run Spark executors: "
            "put a Java 11 or 17 on the PATH of `ray start` and start them again (`helio up` does so)",
            field="PATH",
        )


def _node_runs_java() -> bool:
    """Return whether the raylet that started this worker has a command to start Java workers."""
    import psutil  # type: ignore[import-untyped]

    for process in psutil.Process().parents():
        for argument in process.cmdline():
            name, is_option, value = argument.partition("=")
            if name == "--java_worker_command" and is_option:
                return bool(value)
    return True  # the raylet is not visible: let RayDP try
