"""The site is built once for all tests of its pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT

BUILD_SECONDS = 500


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site. A broken link or anchor, or a page that no index has, fails the build."""
    directory = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "tools.site", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return directory
