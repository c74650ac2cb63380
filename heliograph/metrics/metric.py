"""The definition of a metric, and counts of latencies (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

# The upper ends of the buckets, in seconds; one more bucket has all that took longer.
LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
# The same for work that takes minutes, in seconds, and for sizes, in bytes.
WORK_BOUNDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
SIZE_BOUNDS = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576, 5_242_880)
Bounds = tuple[float, ...]

# The values of the metric's labels in order, and a number or what ``Histogram.told`` returns.
Sample = tuple[Sequence[str], Any]
Series = Mapping[str, Iterable[Sample]]  # by the name of the metric


class MetricKind(Enum):
    """Prometheus' type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is exported.

    Attributes:
        name: ends with its unit, if it has one, and of a counter with ``_total`` after it.
        labels: their names.
        key: its name in the statistics of its part; empty if it is not taken from there.
        is_rays: whether it goes through ``ray.util.metrics`` too, for Ray's own boards.
        bounds: upper ends of the buckets of a histogram.
    """

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    key: str = ""
    is_rays: bool = False
    bounds: Bounds = LATENCY_BOUNDS

    @property
    def unit(self) -> str:
        name = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), "")


def counter_of(prefix: str, label: str, name: str, meaning: str, key: str = "", *, is_rays: bool = False) -> Metric:
    """Return a counter of a part, whose name is in ``label``."""
    return Metric(f"{prefix}_{name}_total", MetricKind.COUNTER, meaning, (label,), key or name, is_rays)


def gauge_of(prefix: str, label: str, name: str, meaning: str, key: str = "", *, is_rays: bool = False) -> Metric:
    """Return a gauge of a part, whose name is in ``label``."""
    return Metric(f"{prefix}_{name}", MetricKind.GAUGE, meaning, (label,), key or name, is_rays)


def histogram_of(prefix: str, label: str, name: str, meaning: str, key: str, bounds: Bounds = LATENCY_BOUNDS) -> Metric:
    """Return a histogram of a part, whose name is in ``label``."""
    return Metric(f"{prefix}_{name}", MetricKind.HISTOGRAM, meaning, (label,), key, bounds=bounds)


class Histogram:
    """Counts of values by bucket, and their sum in the unit of the bounds. A hot path adds to both itself."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Bounds = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def told(self) -> dict[str, Any]:
        """Return the histogram as it is sent to the gateway."""
        return {"counts": list(self.counts), "sum": self.total}


def merged(histograms: Iterable[Histogram]) -> dict[str, Any]:
    """Return the sum of some histograms, as ``Histogram.told`` does."""
    total = Histogram()
    for one in histograms:
        total.counts = [mine + more for mine, more in zip(total.counts, one.counts, strict=True)]
        total.total += one.total
    return total.told()


def read_from(metrics: Iterable[Metric], statistics: Mapping[str, Any], *labels: str) -> dict[str, list[Sample]]:
    """Return the samples of the metrics in a part's statistics; an older part's may lack some."""
    return {
        metric.name: [(labels, statistics[metric.key] / 1000 if metric.key.endswith("_ms") else statistics[metric.key])]
        for metric in metrics
        if metric.key in statistics
    }
