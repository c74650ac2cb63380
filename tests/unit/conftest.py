"""Unit tests are pure: no Ray."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that starts Ray is a cluster test in the wrong folder."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a unit test called ray.init")

    monkeypatch.setattr("ray.init", refuse)
