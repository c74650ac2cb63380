"""Rates per second of counters that only grow, over Pulsar's window of a minute (pure)."""

from __future__ import annotations

SAMPLE_SECONDS = 15.0  # from one sample of a counter to the next
SAMPLES_KEPT = 5  # the oldest is then a minute old, and the next one at most a minute and a quarter
SECONDS_MAX = SAMPLE_SECONDS * SAMPLES_KEPT  # what grew grew in these, also after a rest without samples
SECONDS_MIN = 1.0  # a rate over a shorter time is noise; it counts as this long


class RateWindow:
    """The rates of a few counters over the last minute, or since it was made if that is less.

    While its topic is not at rest, samples are taken, until all have the same counters (``RateSampler``). A reader
    changes nothing, so that all readers get the same rates, however often they look.

    Args:
        now: seconds of a monotonic clock; the counters are 0 then.
        width: how many counters.
    """

    __slots__ = ("_samples",)

    def __init__(self, now: float, width: int) -> None:
        self._samples: list[tuple[float, ...]] = [(now, *(0,) * width)]  # time and counters; at most SAMPLES_KEPT

    def sample(self, now: float, *counters: int) -> None:
        """Note the counters at a time."""
        assert len(counters) + 1 == len(self._samples[0]), "a window has a width"
        self._samples.append((now, *counters))
        if len(self._samples) > SAMPLES_KEPT:
            del self._samples[0]

    def rates(self, now: float, *counters: int) -> tuple[float, ...]:
        """Return how much each counter grew per second since the oldest sample."""
        before = self._samples[0]
        seconds = min(max(now - before[0], SECONDS_MIN), SECONDS_MAX)
        return tuple((count - old) / seconds for count, old in zip(counters, before[1:], strict=True))
