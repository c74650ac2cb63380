"""The choice of Java, and the errors when Spark cannot be started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.errors import ClusterNotFoundError, ResourceError
from heliograph.pipelines.spark import java
from heliograph.pipelines.spark import session as spark_session
from heliograph.pipelines.spark.java import java_environment
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


def a_java(directory: Path, version: str | None) -> Path:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "java").touch()
    if version is not None:
        (directory / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.mark.parametrize("version", ["11.0.2", "17", "17.0.9", None])
def test_a_suitable_java_home_is_used(tmp_path: Path, version: str | None) -> None:
    home = a_java(tmp_path / "java", version)
    found = java_environment({"JAVA_HOME": str(home), "PATH": "/usr/bin"})
    assert found == {"JAVA_HOME": str(home), "PATH": f"{home}/bin{os.pathsep}/usr/bin"}
    assert java_environment(found) == found  # a second call does not extend the PATH


@pytest.mark.parametrize("version", ["1.8.0_292", "21.0.1"])
def test_an_unsuitable_java_home_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(ResourceError, match="JAVA_HOME"):
        java_environment({"JAVA_HOME": str(a_java(tmp_path / "java", version))})


def test_a_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="no bin/java"):
        java_environment({"JAVA_HOME": str(tmp_path)})


def test_without_java_home_the_wheel_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(tmp_path / "wheel", None)
    monkeypatch.setattr(java, "_wheel_home", lambda: home)
    assert java_environment({})["JAVA_HOME"] == str(home)
    monkeypatch.setattr(java, "_wheel_home", lambda: None)
    assert java_environment({}) == {}
