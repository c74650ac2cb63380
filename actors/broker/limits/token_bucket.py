"""A rate limit as a token bucket (pure): tokens flow in at a rate, and each entry takes some out.

The bucket may go below zero, because entries are not split; the next entry then waits until it is above zero again. So
the rate holds over any longer time, and an entry of any size passes at some time.
"""

from __future__ import annotations

BURST_SECONDS = 1.0  # a bucket holds what flows in during this time


class TokenBucket:
    """A bucket of tokens. Times are seconds of a monotonic clock.

    Args:
        rate: tokens a second, above 0.
        now: the bucket is full then.
    """

    def __init__(self, rate: float, now: float) -> None:
        assert rate > 0, "a rate of 0 is no limit and needs no bucket"
        self.rate = rate
        self._tokens = rate * BURST_SECONDS  # <= rate * BURST_SECONDS, at the time ``_at``
        self._at = now

    def available(self, now: float) -> float:
        """Return the number of tokens; below 0 if more were taken than there were."""
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate * BURST_SECONDS)
            self._at = now
        assert self._tokens <= self.rate * BURST_SECONDS, "a bucket has a size"
        return self._tokens

    def take(self, tokens: float, now: float) -> None:
        """Take tokens, even if there are not enough."""
        assert tokens >= 0, "tokens are not given back"
        self.available(now)
        self._tokens -= tokens

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        missing = 1.0 - self.available(now)
        return max(missing / self.rate, 0.0) if self._tokens <= 0 else 0.0
