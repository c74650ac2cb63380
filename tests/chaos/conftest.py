"""The kill tests check for losses, not for speed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.patience import patience


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    with patience():
        yield
