"""The clients and administrations that act for callers: connections on behalf of one role never serve another."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from heliograph.auth.principal import Principal
from heliograph.base.guard.shares import UnpackBudget
from heliograph.client.aio.client import AsyncClient
from heliograph.client.options import ClientOptions
from heliograph.gateway.config import UNPACKED_BYTES_MAX, GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.ports import (
    AdminPort,
    ConsumerPort,
    ProducerPort,
    ReaderPort,
)

Handle = TypeVar("Handle")


class RoleClient:
    """The calls that routes make, by the client of one role. Open handles are counted, so that it is not closed."""

    unpacked: Any = None  # that of the client is set

    def __init__(self, client: AsyncClient, now: float) -> None:
        self._client = client
        self._handles: weakref.WeakSet[Any] = weakref.WeakSet()
        self._using = 0  # calls that open something, or wait for a reply
        self.last_used = now

    @property
    def is_used(self) -> bool:
        """Return whether something that it opened, or is opening, is still held, or a request waits for its reply."""
        return bool(self._using or self._handles)

    async def producer(self, topic: str, **options: Any) -> ProducerPort:
        return await self._opened(self._client.producer(topic, **options))

    async def consumer(self, topic: str | Sequence[str], subscription: str, **options: Any) -> ConsumerPort:
        return await self._opened(self._client.consumer(topic, subscription, **options))

    async def reader(self, topic: str, **options: Any) -> ReaderPort:
        return await self._opened(self._client.reader(topic, **options))

    async def request(self, topic: str, value: Any, **options: Any) -> bytes | None:
        with self._used():
            return await self._client.request(topic, value, **options)

    async def stream_request(self, topic: str, value: Any, **options: Any) -> AsyncGenerator[bytes]:
        with self._used():
            async with contextlib.aclosing(self._client.stream_request(topic, value, **options)) as parts:
                async for part in parts:
                    yield part

    async def open_by(self, make: Callable[[Any], Awaitable[Handle]]) -> Handle:
        """Return what is made of the client itself."""
        return await self._opened(make(self._client))

    @contextlib.contextmanager
    def held(self) -> Iterator[AsyncClient]:
        """Hold the client itself, which is not closed meanwhile."""
        with self._used():
            yield self._client

    async def close(self) -> None:
        await self._client.close()

    async def _opened(self, opening: Awaitable[Handle]) -> Handle:
        with self._used():
            handle = await opening
            self._handles.add(handle)
            return handle

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        self._using += 1
        try:
            yield
        finally:
            self._using -= 1


class RoleAgents:
    """Makes what acts for callers: connections in the gateway's own role that name the caller's, and admin calls.

    Args:
        admin: returns an administration whose operations need the rights of a caller.
    """

    def __init__(self, options: ClientOptions, admin: Callable[[Principal], AdminPort]) -> None:
        self._options = options
        self.admin = admin

    def unnamed(self) -> AsyncClient:
        """Return a client that names nobody: brokers refuse it, and nothing uses it."""
        return AsyncClient(self._options)

    def client(self, principal: Principal) -> AsyncClient:
        """Return a client whose connections name the caller's role; it connects when it is used."""
        return AsyncClient(dataclasses.replace(self._options, original_principal=principal.role))


class Agents:
    """Finds the client and the administration for a caller.

    At most ``principals_max`` roles have clients; unused ones are closed, the least recently used first (I15).

    Args:
        client: used where callers are not authenticated; the caller closes it.
        admin: used as ``client`` is.
        make: makes the clients of a role; None if callers are not authenticated.
    """

    def __init__(
        self,
        client: AsyncClient,
        admin: AdminPort,
        make: RoleAgents | None,
        config: GatewayConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self.own = admin  # with the gateway's own rights
        self._make = make
        self._max = config.principals_max
        self._idle_seconds = config.principal_idle_ms / 1000
        self._clock = clock
        self._unpacked = client.unpacked = UnpackBudget(UNPACKED_BYTES_MAX)
        self._clients: OrderedDict[str, RoleClient] = OrderedDict()
        self._discarded: list[RoleClient] = []  # closed by the next sweep

    def admin_of(self, caller: Caller) -> AdminPort:
        """Return the administration whose operations need the caller's rights, and name its address to the brokers."""
        if caller.principal.is_internal:
            return self.own.called_from(caller.address)
        assert self._make is not None, "an authenticated gateway has a factory"
        return self._make.admin(caller.principal).called_from(caller.address)

    @contextlib.contextmanager
    def held(self, principal: Principal) -> Iterator[AsyncClient]:
        """Return what ``client_of`` does, as the client that it is, for code that opens several handles of it."""
        if principal.is_internal:
            yield self._client
        else:
            with self._role_client(principal).held() as client:
                yield client

    def client_of(self, principal: Principal) -> AsyncClient:
        """Return the client whose connections speak for the caller's role.

        Raises:
            TooManySessionsError: as many roles as there may be use theirs.
        """
        return self._client if principal.is_internal else cast(AsyncClient, self._role_client(principal))

    async def open_by(self, principal: Principal, make: Callable[[Any], Awaitable[Handle]]) -> Handle:
        """Return what is made of the client of the caller's role, which stays open while that is held.

        Raises:
            TooManySessionsError: as ``client_of``.
            HeliographError: as ``make`` raises.
        """
        return await (make(self._client) if principal.is_internal else self._role_client(principal).open_by(make))

    def _role_client(self, principal: Principal) -> RoleClient:
        assert self._make is not None, "an authenticated gateway has a factory"
        found = self._clients.get(principal.role)
        if found is None:
            self._make_room()
            client = self._make.client(principal)
            client.unpacked = self._unpacked
            found = self._clients[principal.role] = RoleClient(client, self._clock())
        self._clients.move_to_end(principal.role)
        found.last_used = self._clock()
        return found

    async def expire(self, now: float) -> None:
        """Close the clients that no request used for the configured time. ``now`` is a time of the clock."""
        for role, client in list(self._clients.items()):
            if not client.is_used and now - client.last_used >= self._idle_seconds:
                self._discarded.append(self._clients.pop(role))
        discarded, self._discarded = self._discarded, []
        for client in discarded:
            await client.close()

    async def close(self) -> None:
        self._discarded += self._clients.values()
        self._clients.clear()
        await self.expire(0.0)

    def __len__(self) -> int:
        return len(self._clients)

    def _make_room(self) -> None:
        if len(self._clients) < self._max:
            return
        for role, client in self._clients.items():
            if not client.is_used:
                self._discarded.append(self._clients.pop(role))
                return
        raise TooManySessionsError(
            f"{len(self._clients)} roles have connections to brokers: close some, or raise principals_max",
            field="principals_max",
            limit=f"{self._max} roles",
        )
