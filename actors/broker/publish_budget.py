"""How many bytes clients may have published and not confirmed, over all connections of a broker (I15), and how fast."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.dispatch_rate import DispatchRate


class PublishBudget:
    """A count with a bound. Whoever finds it exhausted stops reading and leaves a callback for when there is room.

    Args:
        bytes_max: above it the budget is exhausted, until it is down to half of it.

    Attributes:
        rate: the broker's limits on publishing.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rate = DispatchRate()
        self.bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_exhausted = False

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing more should be read now."""
        return self._is_exhausted

    def hold(self, size: int) -> None:
        """Bytes came in."""
        self.bytes += size
        if self.bytes > self.bytes_max:
            self._is_exhausted = True

    def settle(self, size: int) -> None:
        """Bytes have their verdict."""
        self.bytes -= size
        assert self.bytes >= 0, "bytes are settled once"
        if self._is_exhausted and self.bytes <= self.bytes_max // 2:
            self._is_exhausted = False
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """``callback`` is called once, when the budget is not exhausted any more."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Call it no more."""
        self._waiting.pop(callback, None)
