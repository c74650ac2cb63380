"""How hypothesis searches: the same examples in every run, and as long as they take on a busy machine.

``pytest --hypothesis-profile=explore`` looks for new ones instead; what it finds becomes an ``@example``.
``FULL=1`` in the environment runs the tests that are marked ``full``, too.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only the full run does."""
    if os.environ.get("FULL", "") in ("", "0"):
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip("only in the full run: FULL=1"))


def pytest_collection_finish() -> None:
    """Keep modules and tests, which live as long as the run, out of the garbage collector: a pass took 3 s."""
    gc.collect()
    gc.freeze()
