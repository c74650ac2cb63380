"""Packages of npm, installed once outside of the repository. A machine that cannot have them skips the tests."""

from __future__ import annotations

from pathlib import Path

from tests.clients.support.cached import cached, fetch
from tests.clients.support.tools import need

INSTALL_SECONDS_MAX = 120


def install_package(name: str, version: str) -> Path:
    """Return the ``node_modules`` folder that holds a package and what it needs, without running their scripts."""
    need("node")
    npm = need("npm")

    def install(folder: Path) -> None:
        folder.mkdir()
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", str(folder)]
        command = [npm, "install", *options, f"{name}@{version}"]
        fetch("npm", f"{name} {version}", command, seconds=INSTALL_SECONDS_MAX)

    return cached("npm", f"{name}-{version}", install) / "node_modules"
