"""The pieces of `make soak` on a cluster in this process, and the line through the second half of a series."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import heliograph
from heliograph.client.access import connect_async
from heliograph.standalone.local import LocalCluster
from tests.soak.__main__ import report
from tests.soak.fit import POINTS_LEAST, SECONDS_LEAST, Fit, fit, verdict
from tests.soak.load import PIECES, Soak

HOUR = 3_600.0


def series(slope: float, noise: float = 0.0, hours: float = 2.0) -> list[tuple[float, float]]:
    """Return a series that begins at 100 with a jump in its first half, and samples every minute."""
    points = []
    for minute in range(int(hours * 60) + 1):
        jump = 50.0 if minute > 15 else 0.0
        points.append((minute * 60.0, 100.0 + jump + slope * minute / 60 + noise * (-1) ** minute))
    return points


def test_a_line_through_the_second_half_does_not_see_the_start() -> None:
    found = fit(series(0.0))
    assert (found.last, found.per_hour, found.error) == pytest.approx((150.0, 0.0, 0.0))
    assert found.is_flat(0.0)


@pytest.mark.parametrize(
    ("slope", "noise", "is_flat"), [(36.0, 1.0, False), (0.5, 0.0, True), (-16.0, 1.0, True), (3.0, 20.0, True)]
)
def test_growth_is_told_from_chance(slope: float, noise: float, is_flat: bool) -> None:
    found = fit(series(slope, noise))
    assert found.per_hour == pytest.approx(slope, abs=max(0.01, 3 * found.error))
    assert found.is_flat(1.0) is is_flat
    assert verdict(found, "MB", 1.0).startswith("flat" if is_flat else "GROWS")


@pytest.mark.parametrize("hours", [0.05, 2 * SECONDS_LEAST / HOUR - 0.02])
def test_a_short_run_says_that_it_is_too_short(hours: float) -> None:
    found = fit(series(36.0, hours=hours))
    assert "too short to fit" in found.note
    assert not found.is_flat(1e9)
    assert verdict(found, "MB", 1.0) == found.note


def test_few_samples_and_none() -> None:
    points = [(number * HOUR, 1.0) for number in range(2 * (POINTS_LEAST - 1))]
    assert "too short" in fit(points[:POINTS_LEAST]).note
    assert fit([]) == Fit(0.0, note="nothing was measured")


def test_the_report_names_what_failed_and_what_grows(capsys: pytest.CaptureFixture[str]) -> None:
    soak = Soak(None, "", "", {"topics": 3}, {"nacks": ["round 7: lost"]}, 60)  # type: ignore[arg-type]
    assert report(soak, {("broker", "MB"): series(36.0), ("bookie", "MB"): series(0.0)}) == 1
    said = capsys.readouterr().out
    assert "FAILED 1 rounds of nacks, the last: round 7: lost" in said
    assert "broker: " in said
    assert "GROWS: +36.00 MB/h" in said
    assert report(Soak(None, "", ""), {("bookie", "MB"): series(0.0)}) == 0  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with heliograph.local() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_each_piece_leaves_what_it_made(cluster: LocalCluster, piece: str) -> None:
    async def scenario() -> None:
        client = await connect_async(cluster.service_url)
        try:
            soak = Soak(client, cluster.service_url, cluster.http_url)
            await PIECES[piece](soak, f"soak-{piece}-0")
            left = await client.admin.list_topics("public/default")
        finally:
            await client.close()
        assert not [name for name in left if f"soak-{piece}-" in name], "it removed its topic"

    asyncio.run(scenario())
