"""One wheel and one environment with what a plain install brings, for all tests: none changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.install.environment import ROOT, Environment, build_wheel
from tests.cluster.install.plain import make_plain


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it requires without an extra."""
    return make_plain(tmp_path_factory.mktemp("plain") / "venv", wheel)
