"""Unix sockets beside TCP listeners, for clients on the same machine: the same bytes for less processor time.

The names are abstract (Linux): they belong to the network namespace, as TCP ports do, and leave nothing on disk. They
have no permissions, so both ends ask the kernel who the other is, and go on only with their own user. That rule is the
same for both, root included: a client never stays with a server that would refuse it. A client uses TCP where nobody
has the name, another user has it, or its backlog is full. Both kinds of socket have the same handshake.
Listeners with TLS have no Unix socket.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from typing_extensions import override

from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.peer import is_loopback, is_wildcard

# For a connection and direction, if the system allows it: a large entry is one call, and several wake a bookie once.
SEND_BUFFER_BYTES = 1 << 20  # I15
UNMAPPED = 65_534  # the kernel's number for all users who have none in this process's user namespace

_CREDENTIALS = struct.Struct("iII")  # process, user and group of the other end

P = TypeVar("P", bound=asyncio.BaseProtocol)

log = logging.getLogger(__name__)
quiet = QuietLog(log)


def socket_name(host: str, port: int) -> bytes | None:
    """Return the abstract name that stands for a TCP address; None if ``host`` is no IP address."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return f"\0heliograph/{address}/{port}".encode()


class LocalListener:
    """The Unix socket beside a TCP listener. ``listen`` makes it.

    Attributes:
        accepted: connections that were handed to their protocol.
    """

    def __init__(self, name: str, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._name = name
        self._factory = factory
        self._server: asyncio.Server | None = None
        self.accepted = 0

    async def listen(self, host: str, port: int, advertised_host: str, backlog: int) -> None:
        """Bind the name of the address that clients are given, without listening yet; do nothing where there is none.

        It has one if that address is this machine's and the TCP listener is reached at it. Otherwise something between
        the two, such as a proxy, would be bypassed.

        Args:
            host, port: of the TCP listener.
            advertised_host: the host that clients are given; empty: ``host``.
        """
        reached_at = advertised_host or host
        bound = socket_name(reached_at, port)
        if not _is_available() or bound is None or is_wildcard(reached_at) or not _is_of_this_machine(reached_at):
            return
        if reached_at != host and not is_wildcard(host):
            return
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            unix.bind(bound)
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Doorkeeper(self), sock=unix, backlog=backlog, start_serving=False
            )
        except OSError as error:
            unix.close()
            reason = error.strerror or error
            log.warning(
                "%s has no Unix socket for %s:%d: %s; its clients use TCP", self._name, reached_at, port, reason
            )

    async def start_serving(self) -> None:
        if self._server is not None:
            await self._server.start_serving()

    def close(self) -> None:
        """Accept no more connections; the name is free at once. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def admit(self, transport: asyncio.Transport) -> None:
        """Hand a new connection to a protocol of its own, or abort it if its user is another."""
        unix: socket.socket = transport.get_extra_info("socket")
        if (user := user_of(unix)) != os.geteuid():
            quiet.warning(self._name, "%s refused a local connection of user %s: it has TCP", self._name, user)
            transport.abort()
            return
        self.accepted += 1
        unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class _Doorkeeper(asyncio.Protocol):
    """The protocol of a connection until it is known whose it is."""

    def __init__(self, listener: LocalListener) -> None:
        self._listener = listener

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._listener.admit(cast(asyncio.Transport, transport))


async def open_connection(factory: Callable[[], P], host: str, port: int, context: ssl.SSLContext | None) -> P:
    """Connect to a listener: over its Unix socket if it has one here, else over TCP.

    Args:
        context: for TLS, which Unix sockets do not have.

    Raises:
        OSError: it cannot be reached.
    """
    loop = asyncio.get_running_loop()
    arrival = _Arrival(factory)
    unix = None if context is not None else connected_socket(host, port)
    try:
        if unix is not None:
            await loop.create_unix_connection(lambda: arrival, sock=unix)
        else:
            await loop.create_connection(lambda: arrival, host, port, ssl=context)
    except BaseException:
        arrival.abandon()
        raise
    assert arrival.protocol is not None, "the socket is open"
    return arrival.protocol


class _Arrival(asyncio.Protocol, Generic[P]):
    """The protocol of a connection of ours until its socket is open, which then has the caller's."""

    def __init__(self, factory: Callable[[], P]) -> None:
        self._factory = factory
        self._transport: asyncio.Transport | None = None
        self.protocol: P | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.protocol = protocol = self._factory()
        self._transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def abandon(self) -> None:
        """Tell the caller's protocol that its connection is lost, because nobody waits for it any more.

        If the caller is cancelled just as the socket opens, uvloop closes the socket and tells no protocol, and the
        transport does not say that it is closing. Other event loops do both.
        """
        if self.protocol is not None and self._transport is not None and not self._transport.is_closing():
            self.protocol.connection_lost(ConnectionAbortedError("its caller was cancelled as it opened"))


def connected_socket(host: str, port: int) -> socket.socket | None:
    """Return a Unix socket connected to the listener at a TCP address, without waiting; None: use TCP."""
    name = socket_name(host, port)
    if name is None or not _is_available():
        return None
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        unix.connect(name)
        if user_of(unix) == os.geteuid() and _is_of_this_machine(host):
            unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            return unix
    except OSError:  # nobody has the name, or its backlog is full
        pass
    unix.close()
    return None


def user_of(unix: socket.socket) -> int:
    """Return the user of the process at the other end, when it connected or began to listen."""
    packed = unix.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def _is_available() -> bool:
    """Return whether there are abstract names, and a number for this process's user that is nobody else's."""
    return hasattr(socket, "SO_PEERCRED") and os.geteuid() != UNMAPPED


def _is_of_this_machine(host: str) -> bool:
    """Return whether an IP address is one of this network namespace's own."""
    if is_loopback(host):
        return True
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
