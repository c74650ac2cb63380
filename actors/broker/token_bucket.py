"""A rate limit (pure): tokens flow into a bucket at a rate, work takes them out.

The bucket may go below zero, because what is taken is known only afterwards (entries are not split); the next taker
then waits until it is above zero again. So the rate holds over any longer time and no single taker is refused for good.
"""

from __future__ import annotations

BURST_SECONDS = 1.0  # a bucket holds what flows in so much time


class TokenBucket:
    """Times are seconds of any clock that does not go back.

    Args:
        rate: tokens a second, above 0.
    """

    def __init__(self, rate: float, now: float) -> None:
        assert rate > 0, "a limit of nothing is no limit"
        self.rate = rate
        self._tokens = rate * BURST_SECONDS
        self._at = now

    def available(self, now: float) -> float:
        """Tokens there are, below zero when more was taken."""
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate * BURST_SECONDS)
            self._at = now
        return self._tokens

    def take(self, tokens: float, now: float) -> None:
        """Take tokens, there or not."""
        self.available(now)
        self._tokens -= tokens

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 when there is one."""
        missing = 1.0 - self.available(now)
        return max(missing / self.rate, 0.0) if self._tokens <= 0 else 0.0
