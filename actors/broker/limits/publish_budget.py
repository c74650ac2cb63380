"""The bound on the bytes that are published and not confirmed yet, over all connections of a broker (I15)."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.actors.broker.limits.dispatch_rate import DispatchRate


class PublishBudget:
    """A count with a bound. A connection that finds it exhausted stops reading and leaves a callback.

    Args:
        bytes_max: above it the budget is exhausted, until half of it is reached.

    Attributes:
        rate: the limits on publishing of the broker.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rate = DispatchRate()
        self.bytes = 0  # 0 <= bytes
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_exhausted = False

    @property
    def is_exhausted(self) -> bool:
        """Whether connections should read nothing more."""
        return self._is_exhausted

    def hold(self, size: int) -> None:
        """Count the bytes of an entry that was published."""
        self.bytes += size
        if self.bytes > self.bytes_max:
            self._is_exhausted = True

    def settle(self, size: int) -> None:
        """Take the bytes of an entry off the count, as it was confirmed or refused. With room, call the callbacks."""
        self.bytes -= size
        assert self.bytes >= 0, "bytes are settled once"
        if self._is_exhausted and self.bytes <= self.bytes_max // 2:
            self._is_exhausted = False
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the budget is not exhausted any more."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Drop a callback."""
        self._waiting.pop(callback, None)
