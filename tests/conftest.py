"""How tests run: coroutine functions on an event loop of their own, and hypothesis with the same examples in every run.

``pytest --hypothesis-profile=explore`` looks for new ones instead; what it finds becomes an ``@example``.
``FULL=1`` in the environment runs the tests that are marked ``full``, too.
"""

from __future__ import annotations

import gc
import os
from inspect import iscoroutinefunction

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


COROUTINE_SECONDS_MAX = 120  # of a unit test: one that awaits what never comes fails long before the limit of all tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only the full run does. Limit the time of unit tests that are coroutine functions."""
    is_full = os.environ.get("FULL", "") not in ("", "0")
    for item in items:
        if not is_full and item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip("only in the full run: FULL=1"))
        is_coroutine = isinstance(item, pytest.Function) and iscoroutinefunction(item.function)
        if is_coroutine and "unit" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(COROUTINE_SECONDS_MAX))


def pytest_collection_finish() -> None:
    """Keep modules and tests, which live as long as the run, out of the garbage collector: a pass took 3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run coroutine tests and fixtures on asyncio; a module that tests uvloop overrides this."""
    return "asyncio"
