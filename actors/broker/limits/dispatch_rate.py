"""Rate limits in messages and in bytes, of delivery (a topic, a subscription) and of publishing (a broker)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heliograph.base.guard.token_bucket import TokenBucket
from heliograph.metadata.model import Policies

Limits = tuple[float, float, int, bool]  # the arguments of ``DispatchRate.set``
Published = Callable[[float], tuple[float, float]]


def nothing_published(now: float) -> tuple[float, float]:
    """Return the publish rate of a topic without publishers."""
    return 0.0, 0.0


class DispatchRate:
    """A limit in messages and one in bytes. ``is_limited`` is False if there is neither.

    Args:
        published: returns the messages and bytes that are published to the topic each second, for limits relative to
            that.
    """

    def __init__(self, published: Published = nothing_published) -> None:
        self.is_limited = False
        self.published = published
        self._setting: Limits = (0, 0, 1, False)
        self._is_relative = False
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None

    def set(
        self, messages_per_second: float, bytes_per_second: float, period_seconds: int = 1, is_relative: bool = False
    ) -> None:
        """Apply new limits; 0 means no limit.

        Args:
            period_seconds: a burst may be as large as the rates allow in this time.
            is_relative: the limits are so much above the rate of publishing.
        """
        setting = (messages_per_second, bytes_per_second, period_seconds, is_relative)
        if setting == self._setting:
            return
        self._setting = setting
        self._is_relative = is_relative
        now = time.monotonic()
        self._messages, self._bytes = (
            TokenBucket(rate, now, period_seconds) if rate > 0 else None
            for rate in (messages_per_second, bytes_per_second)
        )
        self.is_limited = self._messages is not None or self._bytes is not None

    def take(self, messages: int, size: int, now: float) -> None:
        """Count an entry that was delivered or published."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size, now)

    def wait(self, now: float) -> float:
        """Return the seconds until the next entry may follow; 0 for now."""
        if self._is_relative:
            self._follow(now)
        return max((bucket.wait(now) for bucket in (self._messages, self._bytes) if bucket is not None), default=0.0)

    def _follow(self, now: float) -> None:
        """Set both rates to the present rate of publishing plus the allowance above it."""
        for bucket, base, published in zip(
            (self._messages, self._bytes), self._setting[:2], self.published(now), strict=True
        ):
            if bucket is not None:
                bucket.change(base + published, now)


def topic_limits(policies: Policies) -> Limits:
    return (
        policies.dispatch_messages_per_second,
        policies.dispatch_bytes_per_second,
        policies.dispatch_period_seconds,
        policies.dispatch_relative,
    )


def subscription_limits(policies: Policies) -> Limits:
    return (
        policies.subscription_dispatch_messages_per_second,
        policies.subscription_dispatch_bytes_per_second,
        policies.subscription_dispatch_period_seconds,
        policies.subscription_dispatch_relative,
    )


def longest_wait(rates: Sequence[DispatchRate], now: float) -> float:
    """Return the seconds until an entry may follow under all of several limits."""
    return max((rate.wait(now) for rate in rates), default=0.0)
