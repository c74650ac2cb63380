"""Prometheus and promtool for tests: those that are installed, else those in the package of Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
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
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as made:  # other runs of the tests do the same meanwhile
        folder = Path(made)
        try:
            subprocess.run(
                ["apt-get", "download", "prometheus"], cwd=made, check=True, capture_output=True, timeout=120
            )
            [package] = folder.glob("prometheus_*.deb")
            subprocess.run(["dpkg", "-x", package.name, "x"], cwd=made, check=True, capture_output=True, timeout=120)
            os.replace(folder / "x", CACHE)
        except (OSError, ValueError, subprocess.SubprocessError):
            pass  # another run may have been earlier
    return str(file) if file.exists() else ""
