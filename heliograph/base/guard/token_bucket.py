"""A rate limit as a token bucket (pure): tokens flow in at a rate, and each entry takes some out.

The bucket may go below zero, because entries are not split; the next entry then waits until it is above zero again. So
the rate holds over any longer time, and an entry of any size passes at some time.
"""

from __future__ import annotations

BURST_SECONDS = 1.0  # unless the caller says otherwise, a bucket holds what flows in during this time


class TokenBucket:
    """A bucket of tokens. Times are seconds of a monotonic clock.

    Args:
        rate: tokens a second, above 0; also less than one.
        now: the bucket is full then.
        burst_seconds: a bucket holds what flows in during this time, and one token at least.
    """

    def __init__(self, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> None:
        assert rate > 0, "a rate of 0 is no limit and needs no bucket"
        self.rate = rate
        self._burst_seconds = burst_seconds
        self._size = _size(rate, burst_seconds)
        self._tokens = self._size  # <= size, at the time ``_at``
        self._at = now

    def change(self, rate: float, now: float) -> None:
        """Let tokens flow in at another rate, above 0, from now on."""
        assert rate > 0, "a rate of 0 is no limit and needs no bucket"
        if rate == self.rate:
            return
        self.available(now)
        self.rate = rate
        self._size = _size(rate, self._burst_seconds)
        self._tokens = min(self._tokens, self._size)

    def available(self, now: float) -> float:
        """Return the number of tokens; below 0 if more were taken than there were."""
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self.rate, self._size)
            self._at = now
        assert self._tokens <= self._size, "a bucket has a size"
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


def _size(rate: float, burst_seconds: float) -> float:
    return max(round(rate * burst_seconds, 6), 1.0)  # 29 / 35 * 35 is a little above 29, which would let 30 pass
