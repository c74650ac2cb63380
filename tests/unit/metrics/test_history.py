"""Two hours of samples: their times, their bounds in number and bytes, and what becomes of each kind of metric."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from heliograph.gateway.http.metrics import GatewayMetrics
from heliograph.metrics import history as histories
from heliograph.metrics.cluster import GATEWAY_METRICS
from heliograph.metrics.history import (
    SAMPLES,
    SERIES_BYTES,
    SERIES_MAX,
    STEP_SECONDS,
    History,
    keep_history,
    quantile_of,
)
from heliograph.metrics.metric import LATENCY_BOUNDS, Histogram, Metric, MetricKind

GAUGE = Metric("g", MetricKind.GAUGE, "m", key="level")
COUNTER = Metric("c_total", MetricKind.COUNTER, "m", key="count")
LATENCY = Metric("l_seconds", MetricKind.HISTOGRAM, "m", key="took")
METRICS = (GAUGE, COUNTER, LATENCY)


class Clock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 10_003.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def series(history: History) -> dict[str, list[float | None]]:
    return {key[0]: samples for key, samples in history.told()["series"]}


def test_gauges_stay_counters_grow_and_latencies_have_quantiles(clock: Clock) -> None:
    history, latency = History(now=clock), Histogram()
    for number in range(3):
        history.begin()
        history.sample(METRICS, {"level": number, "count": 50 * number, "took": latency.told()})
        clock.seconds += STEP_SECONDS
        for _ in range(99):
            latency.observe(0.002)
        latency.observe(0.3)
    found = series(history)
    assert found["g"] == [0.0, 1.0, 2.0]
    assert found["c_total"] == [None, 5.0, 5.0]
    assert found["l_seconds:p50"] == [None, 0.0025, 0.0025]
    assert found["l_seconds:p99"] == [None, 0.0025, 0.0025]
    assert history.told()["age_seconds"] == 13.0
    history.begin()
    history.sample(METRICS, {"level": 9, "count": 3, "took": latency.told()})  # the counter began again
    assert series(history)["c_total"][-1] is None


def test_a_quantile_is_the_end_of_its_bucket() -> None:
    counts = [0] * (len(LATENCY_BOUNDS) + 1)
    counts[3], counts[-1] = 98, 2
    assert quantile_of(counts, 0.5) == LATENCY_BOUNDS[3]
    assert quantile_of(counts, 0.99) == 2 * LATENCY_BOUNDS[-1]


def test_missed_steps_have_no_samples_and_old_series_go(clock: Clock) -> None:
    history = History(now=clock)
    history.begin()
    history.note(("a",), 1.0)
    clock.seconds += 3 * STEP_SECONDS
    history.begin()
    history.note(("b",), 2.0)
    assert series(history) == {"a": [1.0, None, None, None], "b": [None, None, None, 2.0]}
    clock.seconds += (SAMPLES - 1) * STEP_SECONDS
    history.begin()
    assert series(history) == {"b": [2.0, *[None] * (SAMPLES - 1)]}
    clock.seconds += 10 * SAMPLES * STEP_SECONDS
    history.begin()
    assert (series(history), len(history)) == ({}, 0)


def test_series_and_bytes_are_bounded_whatever_is_noted(clock: Clock) -> None:
    history = History(now=clock)
    for step in range(SAMPLES + 5):
        history.begin()
        for number in range(3 if step else SERIES_MAX + 50):
            history.note((f"s{number}", "label"), number)
            history.growth((f"s{number}",), number)
        clock.seconds += STEP_SECONDS
    assert len(history) == 3
    for number in range(2 * SERIES_MAX):
        history.note((f"t{number}",), 1.0)
    assert len(history) == SERIES_MAX
    assert all(sys.getsizeof(ring) <= SERIES_BYTES + 200 for ring in history._rings.values())
    assert len(history._counters) <= SERIES_MAX
    assert all(len(samples) <= SAMPLES for _, samples in history.told()["series"])


async def test_the_history_of_the_gateway_goes_on_whatever_a_step_raises(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    history, metrics, steps = History(now=clock), GatewayMetrics(), 0

    def read() -> dict[str, Any]:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise TypeError("no number")
        for route, seconds in (("/a", 0.002), ("/b", 0.002), ("/b", 0.3)):
            metrics.answered(route, seconds)
        return metrics.sums()

    class Sleeping:
        @staticmethod
        async def sleep(_: float) -> None:
            clock.seconds += STEP_SECONDS
            if steps == 3:
                raise asyncio.CancelledError

    monkeypatch.setattr(histories, "asyncio", Sleeping)
    with pytest.raises(asyncio.CancelledError):
        await keep_history(history, GATEWAY_METRICS, read)
    found = series(history)
    assert found["heliograph_gateway_http_latency_seconds:p50"][-1] == 0.0025
    assert found["heliograph_gateway_http_latency_seconds:p99"][-1] == 1.0
    assert None not in (found["heliograph_gateway_memory_bytes"][0], found["heliograph_gateway_memory_bytes"][-1])
    assert "no number" in caplog.text


def test_counters_that_are_read_no_more_make_room_for_others(clock: Clock) -> None:
    """Their keys are not those of the series that are made of them."""
    history = History(now=clock)
    for topic in range(3 * SERIES_MAX):
        history.begin()
        history.growth(("publish", f"t{topic}"), 1.0)
        clock.seconds += SAMPLES * STEP_SECONDS / (SERIES_MAX / 2)
        assert history.growth(("publish", f"t{topic}"), 2.0), f"topic {topic} has samples"
