"""Limits of callers: bytes of bodies that are held, what they have open, requests and bytes a second (I15).

Nothing here does I/O; times are passed in as seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from heliograph.base.guard.shares import ShareCounter
from heliograph.base.guard.token_bucket import TokenBucket
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManyRequestsError, TooManySessionsError, TooMuchHeldError
from heliograph.gateway.http.caller import Caller

CALLERS_MAX = 10_000  # addresses, roles and tenants whose rates are remembered; the one seen longest ago is forgotten
SHARE_OF_ONE_ADDRESS = 4  # one address may hold a quarter of all


class Shares:
    """Counts of one kind of thing that callers have open, with a bound for one address and the same for one role."""

    def __init__(self, what: str, most: int, setting: str) -> None:
        self._what = what
        self._most = most
        self._setting = setting
        self._of_address = ShareCounter()
        self._of_role = ShareCounter()

    def is_full(self, caller: Caller) -> bool:
        """Return whether the caller's address, or role, has as many as it may."""
        return self._of_address[caller.address] >= self._most or (
            bool(caller.role) and self._of_role[caller.role] >= self._most
        )

    def take(self, caller: Caller) -> None:
        """Count one more.

        Raises:
            TooManySessionsError: the caller's address, or role, has as many as it may.
        """
        if self.is_full(caller):
            raise TooManySessionsError(
                f"your address or role has {self._most} {self._what} open: close some, or raise {self._setting}",
                field=self._setting,
                limit=f"{self._most} of one address or role",
            )
        self._of_address.add(caller.address, 1)
        if caller.role:
            self._of_role.add(caller.role, 1)

    def give_back(self, caller: Caller) -> None:
        self._of_address.add(caller.address, -1)
        if caller.role:
            self._of_role.add(caller.role, -1)


class BodyBudget:
    """The bytes of bodies and frames that the gateway holds for all its callers."""

    def __init__(self, config: GatewayConfig) -> None:
        self.bytes_max = config.held_bytes_max
        self.address_bytes_max = max(config.held_bytes_max // SHARE_OF_ONE_ADDRESS, config.request_bytes_max)
        self._held = ShareCounter()

    @property
    def held_bytes(self) -> int:
        return self._held.total

    def take(self, address: str, size: int) -> None:
        """Count bytes that arrived.

        Raises:
            TooMuchHeldError: the gateway, or the address, holds too much already; nothing was counted.
        """
        if self._held.total + size > self.bytes_max:
            raise TooMuchHeldError(
                "the gateway is receiving as much as it holds at once: try again",
                field="held_bytes_max",
                limit=f"{self.bytes_max} bytes",
            )
        if self._held[address] + size > self.address_bytes_max:
            raise TooManyRequestsError(
                "the requests of your address hold as many bytes as one address may: wait for their answers",
                field="held_bytes_max",
                limit=f"{self.address_bytes_max} bytes",
            )
        self._held.add(address, size)

    def give_back(self, address: str, size: int) -> None:
        if size:
            self._held.add(address, -size)


class Rate:
    """Units a second for each of many callers. A second's worth may come at once; a caller in debt waits."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait_seconds(self, key: str, now: float) -> float:
        """Return how long the caller has to wait; 0 if it may go on."""
        if not self._per_second or not key:
            return 0.0
        left = self._bucket(key, now).available(now)
        return 0.0 if left > 0 else (1e-3 - left) / self._per_second

    def use(self, key: str, amount: float, now: float) -> None:
        """Count the use of a caller."""
        if self._per_second and key:
            self._bucket(key, now).take(amount, now)

    def _bucket(self, key: str, now: float) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= CALLERS_MAX:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._per_second, now)
        else:
            self._buckets.move_to_end(key)
        return bucket


class RateLimits:
    """Requests and bytes a second of an address, a role and a tenant. A frame of a WebSocket counts as a request."""

    def __init__(self, config: GatewayConfig) -> None:
        self._rates = {
            "address": (Rate(config.address_requests_per_second), Rate(config.address_bytes_per_second)),
            "role": (Rate(config.role_requests_per_second), Rate(config.role_bytes_per_second)),
            "tenant": (Rate(config.tenant_requests_per_second), Rate(config.tenant_bytes_per_second)),
        }
        self.is_on = any(
            getattr(config, f"{kind}_{unit}_per_second") for kind in self._rates for unit in ("requests", "bytes")
        )

    def wait_seconds(self, keys: Iterable[tuple[str, str]], now: float) -> tuple[float, str]:
        """Return the longest wait of any of a request's keys, and which kind of key it is of."""
        longest = (0.0, "")
        for kind, key in keys:
            for rate in self._rates[kind]:
                longest = max(longest, (rate.wait_seconds(key, now), kind))
        return longest

    def use(self, keys: Iterable[tuple[str, str]], requests: int, size: int, now: float) -> None:
        for kind, key in keys:
            of_requests, of_bytes = self._rates[kind]
            of_requests.use(key, requests, now)
            of_bytes.use(key, size, now)


def too_fast(wait: float, kind: str) -> TooManyRequestsError:
    error = TooManyRequestsError(
        f"this {kind} uses more requests or bytes a second than it may", field=f"{kind}_requests_per_second"
    )
    error.retry_after_seconds = math.ceil(wait)
    return error


def tenant_of(path: str) -> str:
    """Return the tenant that a path of the gateway names; empty if it names none."""
    parts = path.split("/", 6)[1:]
    match parts:
        case ["topics", _, tenant, *_] | ["admin", "v2", "persistent" | "non-persistent", tenant, *_]:
            return tenant
        case ["admin", "v2", "namespaces" | "tenants" | "schemas", tenant, *_]:
            return tenant
        case ["tasks", tenant, _, _, *_]:
            return tenant
        case ["ws", "v2", _, _, tenant, *_] | ["lookup", "v2", "topic", _, tenant, *_]:
            return tenant
    return ""
