"""The table of `make scale` on small clusters, by counts that a busy machine does not change; and its verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scale.cost import Cost
from tests.scale.failover import ROWS as FAILOVER
from tests.scale.jobs import ROWS as JOBS
from tests.scale.row import Goal, Row, expected, growth, verdict
from tests.scale.site import Site

ROWS = (*JOBS, *FAILOVER)
SMALL, LARGE = 1_000, 4_000
OPEN_MAX = 100  # opening topics takes most of the time
CALLS_MORE, BYTES_MORE, STEPS_MORE = 1, 500, 500  # that chance may add: a session's ping
MEASURED_AGAIN_MAX = 3
MS = Goal("processor", "ms", 20.0, 1_000_000, lambda cost: cost.cpu_ms)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    found = tuple(
        Site(tmp_path_factory.mktemp("scale") / str(size), size, open_max=OPEN_MAX, counts_steps=True)
        for size in (SMALL, LARGE)
    )
    yield found[0], found[1]
    for site in found:
        site.close()


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.runs_small], ids=lambda row: row.limit)
def test_what_must_not_grow_does_not(row: Row, sites: tuple[Site, Site]) -> None:
    (small_size, small), (large_size, large) = row.measure(sites[0]), row.measure(sites[1])
    assert large_size >= small_size
    most = Cost(
        calls=small.calls + CALLS_MORE, store_bytes=small.store_bytes + BYTES_MORE, steps=small.steps + STEPS_MORE
    )
    for _ in range(MEASURED_AGAIN_MAX if row.is_flat else 0):
        if not above(large, most):
            break
        _, large = row.measure(sites[1])  # on a busy machine, periodic work of others may be in each run
    assert not (row.is_flat and above(large, most)), f"{large} is above {most}"


def above(cost: Cost, most: Cost) -> bool:
    return cost.calls > most.calls or cost.store_bytes > most.store_bytes or cost.steps > most.steps


@pytest.mark.parametrize(
    ("points", "at", "value", "how"),
    [
        ([(1_000, 2.0), (10_000, 2.0)], 1_000_000, 2.0, "flat"),
        ([(1_000, 1.0), (10_000, 10.0)], 1_000_000, 1_000.0, "n^1.0"),
        ([(1_000, 1.0), (10_000, 100.0)], 100_000, 10_000.0, "n^2.0"),
        ([(1_000, 3.0)], 10_000, 30.0, "not known"),  # one size says nothing of growth: expect the worst that is usual
        ([(1_000, 0.0), (10_000, 0.0)], 1_000_000, 0.0, "flat"),
        ([(1_000, 5.0), (1_000_000, 9.0)], 50_000, 9.0, "n^0.1"),
    ],
)
def test_values_beyond_the_largest_size_are_expected(
    points: list[tuple[int, float]], at: int, value: float, how: str
) -> None:
    assert expected(points, at) == pytest.approx(value)
    assert growth(points) == how


def test_a_verdict_says_by_how_much_a_goal_is_missed() -> None:
    assert verdict([(1_000, 1.0), (1_000_000, 10.0)], MS) == "held (10.0)"
    assert verdict([(1_000, 1.0), (10_000, 10.0)], MS) == "missed by 50.0 times (1,000, expected at 1,000,000)"
    assert verdict([(1_000, 0.001)], MS) == "held (1.00, expected at 1,000,000)", "even if it grows with the size"
    assert verdict([(1_000, 1.0)], MS) == "not known from one size"
    assert verdict([(1_000, 50.0)], MS) == "missed (50.0 with 1,000)"
    assert MS.value(Cost(cpu_ms=3.0)) == 3.0


def test_limits_have_one_row_each() -> None:
    assert len({row.limit for row in ROWS}) == len(ROWS)
