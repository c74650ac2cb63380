"""Prometheus and promtool for tests: those that are installed, else those in the package of Debian."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

CACHE = Path("~/.cache/heliograph-tests/prometheus").expanduser()


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; the test is skipped if it can be had in no way."""
    found = shutil.which(name) or _of_package(name)
    if not found:
        pytest.skip(f"{name} is not installed, and apt does not give it: apt-get install prometheus")
    return found


@cache
def _of_package(name: str) -> str:
    file = CACHE / "usr" / "bin" / name
    if file.exists():
        return str(file)
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return ""
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", "prometheus"], cwd=CACHE, check=True, capture_output=True, timeout=120)
        for package in CACHE.glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "-x", package.name, "."], cwd=CACHE, check=True, capture_output=True, timeout=120)
            package.unlink()
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(file) if file.exists() else ""
