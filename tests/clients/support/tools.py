"""The tools of other languages: found on the path, or the test is skipped with the reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

PACKAGES = {
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "go": "golang-go",
    "node": "nodejs",
    "npm": "npm",
}


def need(name: str) -> str:
    """Return the path of a program. Skip the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine: install {PACKAGES.get(name, name)}, or run `make servers` as root")
    return found


def cache_folder(kind: str) -> Path:
    """Return a folder for what is built once and used by later runs, outside of the repository.

    It is below ``$XDG_CACHE_HOME``, else below ``~/.cache``, else below the folder of temporary files.
    """
    chosen = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(chosen) if chosen else Path.home() / ".cache") / "heliograph-tests" / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"heliograph-tests-{os.getuid()}" / kind
        folder.mkdir(parents=True, exist_ok=True)
    return folder
