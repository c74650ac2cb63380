"""The limits on publishing over all connections of a broker: unconfirmed bytes, and rates (I15)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from heliograph.actors.broker.limits.dispatch_rate import DispatchRate

# Memory of the Python objects around the payload of an entry without an outcome: the entry, its request, its place.
PENDING_OVERHEAD_BYTES = 500
TENANTS_MAX = 10_000  # whose rates are remembered; the one that published longest ago is forgotten # I15


class PublishBudget:
    """A count with a bound. A connection that finds it exhausted stops reading and leaves a callback. Each connection
    counts by its ``PublishShare``.

    Args:
        bytes_max: above it the budget is exhausted, until half of it is reached.

    Attributes:
        bytes: of the entries that have no outcome, with the objects around them; 0 <= bytes.
        is_exhausted: whether connections should read nothing more.
        is_rated: whether there is a limit in bytes or messages a second.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.is_exhausted = self.is_rated = False
        self._rate = DispatchRate()
        self._tenant_bytes_per_second = 0
        self._tenants: OrderedDict[str, DispatchRate] = OrderedDict()
        self._waiting: dict[Callable[[], None], None] = {}

    def limit(self, messages_per_second: int, bytes_per_second: int, tenant_bytes_per_second: int) -> None:
        """Apply other limits to what comes from now on; 0 means no limit.

        Args:
            messages_per_second, bytes_per_second: of the broker.
            tenant_bytes_per_second: of publishes to the topics of any one tenant.
        """
        self._rate.set(messages_per_second, bytes_per_second)
        self._tenant_bytes_per_second = tenant_bytes_per_second
        self.is_rated = self._rate.is_limited or tenant_bytes_per_second > 0

    def spend(self, tenant: str, messages: int, size: int, now: float) -> float:
        """Count an entry, and return the seconds until its connection may publish the next one.

        Args:
            tenant: of the topic.
        """
        self._rate.take(messages, size, now)
        wait = self._rate.wait(now)
        if self._tenant_bytes_per_second:
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
        rate.set(0, self._tenant_bytes_per_second)
        return rate

    def offer_room(self) -> None:
        """Call the callbacks, if there is room again."""
        if self.bytes <= self.bytes_max // 2:
            self.is_exhausted = False
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the budget is not exhausted any more."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        self._waiting.pop(callback, None)


class PublishShare:
    """Memory of what one connection has published and has no outcome yet. It counts for the budget of all, too.

    Attributes:
        bytes: of those entries, with the objects around them; 0 <= bytes <= bytes of the budget.
        entries: their number.
    """

    __slots__ = ("_budget", "bytes", "entries")

    def __init__(self, budget: PublishBudget) -> None:
        self._budget = budget
        self.bytes = self.entries = 0

    def hold(self, size: int, bytes_max: int) -> bool:
        """Count an entry that was published.

        Args:
            size: of its payload.
            bytes_max: that the connection may have without an outcome.

        Returns:
            whether the connection should read no more, because it has more, or the budget is exhausted.
        """
        budget = self._budget
        size += PENDING_OVERHEAD_BYTES
        self.entries += 1
        self.bytes += size
        budget.bytes += size
        if budget.bytes > budget.bytes_max:
            budget.is_exhausted = True
        return budget.is_exhausted or self.bytes > bytes_max

    def settle(self, size: int) -> None:
        """Count an entry no more, as it was confirmed or refused."""
        budget = self._budget
        size += PENDING_OVERHEAD_BYTES
        self.entries -= 1
        self.bytes -= size
        budget.bytes -= size
        assert self.entries >= 0, "an entry is settled once"
        assert self.bytes >= 0, "its bytes do not change"
        if budget.is_exhausted:
            budget.offer_room()
