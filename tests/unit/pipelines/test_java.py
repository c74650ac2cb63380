"""The choice of Java."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heliograph.base.errors import ResourceError
from heliograph.pipelines.spark import java
from heliograph.pipelines.spark.java import java_environment


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
