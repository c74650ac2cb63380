"""How fast entries may go out: the limits of a topic and of one of its subscriptions, in messages and in bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from actors.broker.token_bucket import TokenBucket


class DispatchRate:
    """One limit in messages and one in bytes a second; 0 is none. ``is_limited`` is False where there is neither."""

    def __init__(self) -> None:
        self.is_limited = False
        self._rates = (0, 0)
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def set(self, messages_per_second: int, bytes_per_second: int) -> None:
        """Go by these from now on."""
        if (messages_per_second, bytes_per_second) == self._rates:
            return
        now = time.monotonic()
        self._rates = (messages_per_second, bytes_per_second)
        self._messages = TokenBucket(messages_per_second, now) if messages_per_second > 0 else None
        self._bytes = TokenBucket(bytes_per_second, now) if bytes_per_second > 0 else None
        self.is_limited = self._messages is not None or self._bytes is not None

    def take(self, messages: int, size: int, now: float) -> None:
        """An entry went out."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size, now)

    def wait(self, now: float) -> float:
        """Seconds until the next entry may go out, 0 for now."""
        return max((bucket.wait(now) for bucket in (self._messages, self._bytes) if bucket is not None), default=0.0)


def longest_wait(rates: Sequence[DispatchRate], now: float) -> float:
    """Seconds until an entry may go out under all of some limits."""
    return max((rate.wait(now) for rate in rates), default=0.0)
