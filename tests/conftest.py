"""How tests run: coroutine functions on an event loop of their own, and hypothesis with the same examples in every run.

``pytest --hypothesis-profile=explore`` looks for new ones instead; what it finds becomes an ``@example``.
``--hypothesis-profile=quick``, which ``make check`` sets, has a fifth of the examples.
``FULL=1`` in the environment runs the tests that are marked ``full``, too. ``TURN=today``, which ``make test`` sets,
runs every second file of the slow tiers, the others tomorrow; without it, and with ``FULL=1``, all of them run.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import STEADY

settings.register_profile(
    "steady",
    max_examples=STEADY,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=STEADY // 5)
settings.load_profile("steady")


COROUTINE_SECONDS_MAX = 120  # of a unit test: one that awaits what never comes fails long before the limit of all tests


TESTS = Path(__file__).parent
SLOW_TIERS = ("cluster", "clients")  # folders below tests/
DAYS_OF_A_TURN = 2  # after which every file of the slow tiers has run


def files_of_the_day(files: Collection[Path], day: int) -> set[Path]:
    """Return every second one of ``files`` in the order of their names; the next day has the others."""
    return set(sorted(files)[day % DAYS_OF_A_TURN :: DAYS_OF_A_TURN])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not its turn, and skip what only the full run does. Limit the time of coroutine functions."""
    is_full = os.environ.get("FULL", "") not in ("", "0")
    if os.environ.get("TURN", "") == "today" and not is_full:
        slow = {item.path for item in items if item.path.relative_to(TESTS).parts[0] in SLOW_TIERS}
        waiting = slow - files_of_the_day(slow, datetime.now(UTC).toordinal())
        config.hook.pytest_deselected(items=[item for item in items if item.path in waiting])
        items[:] = [item for item in items if item.path not in waiting]
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
