"""The errors when Spark cannot be started."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from heliograph.base.errors import ClusterNotFoundError, ResourceError
from heliograph.pipelines.spark import session as spark_session
from heliograph.pipelines.spark.session import require_spark, start_spark


def test_missing_packages_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "find_spec", lambda name: None if name == "raydp" else object())
    with pytest.raises(ResourceError, match=r"raydp not installed: pip install .*\[spark\]"):
        require_spark()
    with pytest.raises(ResourceError, match="raydp"):
        start_spark()


def test_no_java_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        return {}

    monkeypatch.setattr(spark_session, "java_environment", none)
    monkeypatch.setattr("heliograph.pipelines.spark.session.shutil.which", lambda _: None)
    with pytest.raises(ResourceError, match="no Java was found") as raised:
        start_spark()
    assert raised.value.field == "JAVA_HOME"


def test_without_ray_the_clusters_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.setattr(spark_session, "java_environment", lambda _: {})
    monkeypatch.setattr("heliograph.pipelines.spark.session.shutil.which", lambda _: "java")
    asked: list[str] = []

    def attach(namespace: str) -> None:
        asked.append(namespace)
        raise ClusterNotFoundError("start one with `helio up`")

    monkeypatch.setattr("heliograph.pipelines.spark.session.discovery.attach", attach)
    with pytest.raises(ClusterNotFoundError, match="helio up"):
        start_spark(namespace="mine")
    assert asked == ["mine"]


def test_an_error_of_the_block_is_never_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[str] = []

    def stop() -> None:
        stops.append("stop")
        raise ConnectionResetError("the JVM is gone")

    monkeypatch.setattr(spark_session, "start_spark", lambda app_name: app_name)
    monkeypatch.setattr(spark_session, "stop_spark", stop)
    mine = ZeroDivisionError("of the user")
    with pytest.raises(ZeroDivisionError) as raised, spark_session.spark_session("app"):
        raise mine
    assert raised.value is mine
    assert raised.value.__notes__ == ["and the Spark session did not stop: ConnectionResetError: the JVM is gone"]
    with pytest.raises(ConnectionResetError), spark_session.spark_session():
        pass  # there is no other error
    assert len(stops) == 2


def test_every_package_that_arrow_needs_is_opened() -> None:
    for package in ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.math", "java.sql/java.sql"):
        assert f"--add-opens={package}=ALL-UNNAMED" in spark_session.JAVA_OPTIONS.split()
