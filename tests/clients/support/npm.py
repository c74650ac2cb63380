"""Packages of npm, installed once outside of the repository. A machine that cannot have them skips the tests."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.clients.support.tools import cache_folder, need

INSTALL_SECONDS_MAX = 120


def install_package(name: str, version: str) -> Path:
    """Return the ``node_modules`` folder that holds a package and what it needs, without running their scripts."""
    need("node")
    npm = need("npm")
    kept = cache_folder("npm") / f"{name}-{version}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as begun:
            folder = Path(begun) / "package"
            folder.mkdir()
            options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", str(folder)]
            try:
                done = subprocess.run(
                    [npm, "install", *options, f"{name}@{version}"],
                    capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not bring {name} {version} in {INSTALL_SECONDS_MAX} s")
            if done.returncode != 0:
                pytest.skip(f"npm cannot bring {name} {version}: {done.stderr.strip()[-300:]}")
            folder.rename(kept)
    return kept / "node_modules"
