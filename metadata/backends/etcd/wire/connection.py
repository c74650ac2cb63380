"""One connection to one endpoint of etcd. gRPC runs on its own threads; its answers come back to the event loop.

Blocking gRPC is used because it serves any number of event loops and threads of a process at once, and because a lease
has to be renewed while the loop is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress, Tls
from heliograph.metadata.backends.etcd.wire.failures import StaleTokenError, has_no_users, translated
from heliograph.metadata.backends.etcd.wire.limits import CALL_SECONDS_MAX, RECEIVE_BYTES_MAX
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.limits import RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX

_Metadata = tuple[tuple[str, str], ...]
_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # etcd refuses what is too large
    ("grpc.use_local_subchannel_pool", 1),  # a socket of its own, not one that another channel gave up
    ("grpc.enable_retries", 0),  # the caller knows what may be sent twice
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_PAUSE_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_PAUSE_MS_MAX),
)
_HAS_LEADER = ("hasleader", "true")  # a member that lost its cluster says so, instead of waiting


class EtcdConnection:
    """A connection that is opened by its first call. If it cannot be opened, that call fails."""

    def __init__(self, address: EtcdAddress, endpoint: str) -> None:
        api = etcd_api()
        self.api = api
        self.endpoint = endpoint
        self._address = address
        self._channel = open_channel(endpoint, address.tls)
        self._token = ""
        self._logging_in = asyncio.Lock()
        self._calls: set[Any] = set()
        self._is_closed = False
        kv, lease = api.KVStub(self._channel), api.LeaseStub(self._channel)
        self._transact = kv.Txn
        self._range = kv.Range
        self._grant = lease.LeaseGrant
        self._revoke = lease.LeaseRevoke
        self._keep_alive = lease.LeaseKeepAlive
        self._watch = api.WatchStub(self._channel).Watch
        self._authenticate = api.AuthStub(self._channel).Authenticate

    async def log_in(self, seconds: float = CALL_SECONDS_MAX) -> None:
        """Get a token, if the address names a user.

        Raises:
            NotPermittedError: etcd refuses the user or the password.
            ConnectionLossError.
        """
        if not self._address.user:
            return
        request = self.api.AuthenticateRequest(name=self._address.user, password=self._address.password)
        try:
            answer = await self._answer(self._authenticate, request, seconds, (_HAS_LEADER,))
            self._token = answer.token
        except grpc.RpcError as error:
            if not has_no_users(error):
                raise translated(error, self.endpoint) from error

    async def transact(self, request: Any, seconds: float = CALL_SECONDS_MAX) -> Any:
        return await self._call(self._transact, request, seconds)

    async def read(self, request: Any, seconds: float = CALL_SECONDS_MAX) -> Any:
        return await self._call(self._range, request, seconds)

    async def grant(self, timeout_seconds: int) -> tuple[int, int]:
        """Begin a lease. Return its id, and the seconds that etcd grants."""
        answer = await self._call(self._grant, self.api.LeaseGrantRequest(TTL=timeout_seconds), CALL_SECONDS_MAX)
        return answer.ID, answer.TTL

    async def revoke(self, lease_id: int, seconds: float = CALL_SECONDS_MAX) -> None:
        """End a lease.

        Raises:
            SessionExpiredError: there is no lease of that id.
        """
        await self._call(self._revoke, self.api.LeaseRevokeRequest(ID=lease_id), seconds)

    def renew_blocking(self, lease_id: int, seconds: float) -> int:
        """Renew a lease, from any thread but the loop's. Return its remaining seconds, 0 if it is over.

        Raises:
            ConnectionLossError: no answer.
        """
        requests = iter((self.api.LeaseKeepAliveRequest(ID=lease_id),))
        try:
            call = self._keep_alive(requests, timeout=seconds, metadata=self._metadata())
            for answer in call:
                call.cancel()
                return int(answer.TTL)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
            raise _lost(self.endpoint) from error
        raise _lost(self.endpoint)

    def open_watch(self, requests: Any) -> Any:
        """Return a watch stream: an iterator of responses, with ``cancel``."""
        return self._watch(requests, metadata=self._metadata())

    def close(self) -> None:
        """Close the connection and fail every call. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for call in list(self._calls):
            call.cancel()
        self._channel.close()

    async def _call(self, method: Any, request: Any, seconds: float) -> Any:
        """Call a method. If etcd refused the token, which changes nothing, repeat the call with a new one.

        Raises:
            HeliographError.
        """
        token = self._token
        try:
            return await self._call_once(method, request, seconds)
        except StaleTokenError:
            async with self._logging_in:
                if self._token == token:
                    await self.log_in(seconds)
        try:
            return await self._call_once(method, request, seconds)
        except StaleTokenError as error:
            raise ConnectionLossError(str(error)) from error

    async def _call_once(self, method: Any, request: Any, seconds: float) -> Any:
        try:
            return await self._answer(method, request, seconds, self._metadata())
        except grpc.RpcError as error:
            raise translated(error, self.endpoint) from error

    async def _answer(self, method: Any, request: Any, seconds: float, metadata: _Metadata) -> Any:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()
        try:
            call = method.future(request, timeout=seconds, metadata=metadata)
        except ValueError as error:  # the channel was closed
            raise _lost(self.endpoint) from error
        self._calls.add(call)
        call.add_done_callback(lambda _: tell_loop(loop, partial(_set, arrived)))
        try:
            await arrived
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self._calls.discard(call)
        if call.cancelled():
            raise _lost(self.endpoint)
        return call.result()

    def _metadata(self) -> _Metadata:
        return (_HAS_LEADER, ("token", self._token)) if self._token else (_HAS_LEADER,)


def open_channel(endpoint: str, tls: Tls | None) -> grpc.Channel:
    """Return a channel to one endpoint, which connects with its first call.

    Raises:
        InvalidConfigError: a file of TLS cannot be read.
    """
    if tls is None:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    try:
        ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert))
    except OSError as error:
        message = f"{error.filename} of the etcd URL cannot be read: {error.strerror}"
        raise InvalidConfigError(message, field="url") from error
    credentials = grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def tell_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call ``callback`` on the loop, from another thread. Nothing happens if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def _lost(endpoint: str) -> ConnectionLossError:
    return ConnectionLossError(f"etcd at {endpoint}: the connection was given up")
