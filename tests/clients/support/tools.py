"""The tools of other languages: found on the path, or the test is skipped with the reason."""

from __future__ import annotations

import shutil

import pytest

PACKAGES = {
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "go": "golang-go",
    "node": "nodejs",
    "npm": "npm",
    "cargo": "cargo",
    "protoc": "protobuf-compiler",
}


def need(name: str) -> str:
    """Return the path of a program. Skip the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine: install {PACKAGES.get(name, name)}, or run `make servers` as root")
    return found
