"""Rate limits in messages and in bytes, of delivery (a topic, a subscription) and of publishing (a broker)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from heliograph.actors.broker.limits.token_bucket import TokenBucket


class DispatchRate:
    """A limit in messages and one in bytes a second. ``is_limited`` is False if there is neither."""

    def __init__(self) -> None:
        self.is_limited = False
        self._rates = (0, 0)
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def set(self, messages_per_second: int, bytes_per_second: int) -> None:
        """Apply new limits; 0 means no limit."""
        if (messages_per_second, bytes_per_second) == self._rates:
            return
        now = time.monotonic()
        self._rates = (messages_per_second, bytes_per_second)
        self._messages = TokenBucket(messages_per_second, now) if messages_per_second > 0 else None
        self._bytes = TokenBucket(bytes_per_second, now) if bytes_per_second > 0 else None
        self.is_limited = self._messages is not None or self._bytes is not None

    def take(self, messages: int, size: int, now: float) -> None:
        """Count an entry that was delivered or published."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size, now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next entry may follow; 0 for now."""
        return max((bucket.wait(now) for bucket in (self._messages, self._bytes) if bucket is not None), default=0.0)


def longest_wait(rates: Sequence[DispatchRate], now: float) -> float:
    """Return the seconds until an entry may follow under all of several limits."""
    return max((rate.wait(now) for rate in rates), default=0.0)
