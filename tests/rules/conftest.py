"""Reads every source file once: the trees stay in memory, and the collector does not walk them between rules."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.rules import source


@pytest.fixture(scope="package", autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    source.forget()
    gc.enable()
