"""Homes of clusters in one process are below a test's own directory, and no Ray is known."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the homes."""
    for name in ("RAY_ADDRESS", "HELIOGRAPH_HOME", "HELIOGRAPH_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "state"
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(root))
    return root
