"""Two hours of samples of the series of one part, in memory: a ring of one float for each ten seconds.

A series takes SERIES_BYTES bytes, beside about 300 for its name. A part keeps at most ``series_max`` of them, so the 80
of a bookie take 0.3 MB and the 500 of a broker with many topics 1.6 MB. Nothing is durable: a part begins without any.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heliograph.metrics.metric import LATENCY_BOUNDS, Metric, MetricKind

STEP_SECONDS = 10.0
SAMPLES = 720  # of a series: two hours
SERIES_MAX = 200  # of a part other than a broker: 0.6 MB  # I15
SERIES_BYTES = SAMPLES * 4
QUANTILES = (0.5, 0.99)  # of latencies
_NO_SAMPLES = array("f", [math.nan] * SAMPLES)
log = logging.getLogger(__name__)

Key = tuple[str, ...]  # the name of a series, and its labels


class History:
    """The samples of the series of one part.

    Args:
        series_max: series that are kept; of others, nothing is (I15).
        now: seconds of a monotonic clock.
    """

    def __init__(self, series_max: int = SERIES_MAX, now: Callable[[], float] = time.monotonic) -> None:
        self._series_max = series_max
        self._now = now
        self._rings: dict[Key, array[float]] = {}
        self._latest: dict[Key, int] = {}  # the step of the latest sample of a ring, newest of all: ``_step``
        self._counters: dict[Key, tuple[float, tuple[float, ...]]] = {}  # when they were read, and what they were
        self._step = self._step_now()

    def __len__(self) -> int:
        return len(self._rings)

    def begin(self) -> None:
        """Begin the step of the present time. Steps in which nothing was sampled have no samples."""
        step = self._step_now()
        for missed in range(max(self._step + 1, step - SAMPLES + 1), step + 1):
            for ring in self._rings.values():
                ring[missed % SAMPLES] = math.nan
        self._step = max(self._step, step)
        for key in [key for key, latest in self._latest.items() if latest <= self._step - SAMPLES]:
            del self._rings[key], self._latest[key]
        ended = self._now() - SAMPLES * STEP_SECONDS
        for key in [key for key, (read, _) in self._counters.items() if read <= ended]:
            del self._counters[key]

    def note(self, key: Key, value: float) -> None:
        """Set the sample of a series at this step."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= self._series_max:  # I15
                return
            ring = self._rings[key] = _NO_SAMPLES[:]
        ring[self._step % SAMPLES] = value
        self._latest[key] = self._step

    def growth(self, key: Key, *counters: float) -> tuple[float, ...]:
        """Return how much counters grew each second since the call before; nothing at the first, or if they fell."""
        now = self._now()
        before = self._counters.get(key)
        if before is None and len(self._counters) >= self._series_max:  # I15
            return ()
        self._counters[key] = (now, counters)
        if before is None or now <= before[0] or any(new < old for new, old in zip(counters, before[1], strict=True)):
            return ()
        return tuple((new - old) / (now - before[0]) for new, old in zip(counters, before[1], strict=True))

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget counters that are read no more."""
        for key in keys:
            self._counters.pop(key, None)

    def sample(self, metrics: Iterable[Metric], statistics: Mapping[str, Any]) -> None:
        """Sample a part's metrics: gauges as they are, the growth of counters each second, QUANTILES of latencies."""
        for metric in metrics:
            value, name = statistics.get(metric.key or metric.name), metric.name
            if isinstance(value, Mapping):
                counts = value.get("counts", ())
                if metric.kind is MetricKind.HISTOGRAM and len(counts) == len(metric.bounds) + 1:
                    grown = self.growth((name,), *counts)
                    for quantile in QUANTILES if any(grown) else ():
                        self.note((f"{name}:p{quantile * 100:.0f}",), quantile_of(grown, quantile, metric.bounds))
            elif isinstance(value, int | float) and metric.kind is MetricKind.GAUGE:
                self.note((name,), float(value))
            elif isinstance(value, int | float) and metric.kind is MetricKind.COUNTER:
                for rate in self.growth((name,), value):
                    self.note((name,), rate)

    def told(self, wanted: Callable[[Key], bool] = lambda key: True) -> dict[str, Any]:
        """Return the samples of the series that are wanted, oldest first, as parts send them to the gateway.

        Returns:
            ``step_seconds``; ``age_seconds``, how old the last sample of each series is; and ``series``, pairs of a key
            and its samples, None where there was none. Leading ones without any are left out, of all series alike.
        """
        at = (self._step + 1) % SAMPLES
        found = {key: [*ring[at:], *ring[:at]] for key, ring in self._rings.items() if wanted(key)}
        begins = (next(n for n, value in enumerate(values) if not math.isnan(value)) for values in found.values())
        first = min(begins, default=0)
        return {
            "step_seconds": STEP_SECONDS,
            "age_seconds": round(self._now() - self._step * STEP_SECONDS, 1),
            "series": [
                [list(key), [None if math.isnan(value) else float(f"{value:.6g}") for value in values[first:]]]
                for key, values in sorted(found.items())
            ],
        }

    def _step_now(self) -> int:
        return int(self._now() // STEP_SECONDS)


def quantile_of(counts: Iterable[float], quantile: float, bounds: Sequence[float] = LATENCY_BOUNDS) -> float:
    """Return the upper end of the bucket that has the quantile; the last has none, so twice its lower end."""
    counts = list(counts)
    left = quantile * sum(counts)
    for count, bound in zip(counts, (*bounds, 2 * bounds[-1]), strict=True):
        left -= count
        if left <= 0:
            return bound
    return 2 * bounds[-1]


async def keep_history(history: History, metrics: Iterable[Metric], read: Callable[[], Mapping[str, Any]]) -> None:
    """Sample the metrics of a part, now and at each step, until it is cancelled. A step that fails has no samples."""
    told = ""
    while True:
        history.begin()
        try:
            history.sample(metrics, read())
        except Exception as error:
            if repr(error) != told:
                told = repr(error)  # one line for all steps that fail alike
                log.warning("metrics are not kept in the history while this is so: %s", told)
        await asyncio.sleep(STEP_SECONDS - time.monotonic() % STEP_SECONDS)
