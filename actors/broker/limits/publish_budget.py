"""The limits on publishing over all connections of a broker: unconfirmed bytes, and rates (I15)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from heliograph.actors.broker.limits.dispatch_rate import DispatchRate

TENANTS_MAX = 10_000  # whose rates are remembered; the one that published longest ago is forgotten # I15


class PublishBudget:
    """A count with a bound. A connection that finds it exhausted stops reading and leaves a callback.

    Args:
        bytes_max: above it the budget is exhausted, until half of it is reached.

    Attributes:
        rate: the limits on publishing of the broker.
        tenant_bytes_per_second: the limit on what is published to the topics of any one tenant; 0: none.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rate = DispatchRate()
        self.tenant_bytes_per_second = 0
        self._tenants: OrderedDict[str, DispatchRate] = OrderedDict()
        self.bytes = 0  # 0 <= bytes
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_exhausted = False

    @property
    def is_exhausted(self) -> bool:
        """Whether connections should read nothing more."""
        return self._is_exhausted

    @property
    def is_rated(self) -> bool:
        """Whether there is a limit in bytes or messages a second."""
        return self.rate.is_limited or self.tenant_bytes_per_second > 0

    def spend(self, tenant: str, messages: int, size: int, now: float) -> float:
        """Count an entry, and return the seconds until its connection may publish the next one.

        Args:
            tenant: of the topic.
        """
        self.rate.take(messages, size, now)
        wait = self.rate.wait(now)
        if self.tenant_bytes_per_second:
            own = self._of_tenant(tenant)
            own.take(messages, size, now)
            wait = max(wait, own.wait(now))
        return wait

    def _of_tenant(self, tenant: str) -> DispatchRate:
        rate = self._tenants.get(tenant)
        if rate is None:
            if len(self._tenants) >= TENANTS_MAX:
                self._tenants.popitem(last=False)
            rate = self._tenants[tenant] = DispatchRate()
        else:
            self._tenants.move_to_end(tenant)
        rate.set(0, self.tenant_bytes_per_second)
        return rate

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
