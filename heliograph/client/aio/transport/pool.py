"""The connections of a client, one per broker."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable

from heliograph.auth.principal import Credentials
from heliograph.base.completion import shielded
from heliograph.base.errors import AlreadyClosedError, AuthenticationError, BadRequestError, ConnectionLostError
from heliograph.base.guard import local_socket
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles
from heliograph.client.aio.transport.connection import BrokerConnection, present
from heliograph.client.identity import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from heliograph.client.options import ClientOptions

_URL = re.compile(r"(pulsar|pulsar\+ssl)://(\[[^\]]+\]|[^:/,]+)(?::([0-9]{1,5}))?/?")
_DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def parse_url(url: str) -> tuple[str, int, bool]:
    """Return host, port and whether the scheme asks for TLS.

    Raises:
        BadRequestError: ``url`` is not of the form ``pulsar://host[:port]`` or ``pulsar+ssl://host[:port]``.
    """
    match = _URL.fullmatch(url)
    if match is None or (match[3] is not None and not 0 < int(match[3]) < 65536):
        raise BadRequestError(f"{url!r} is not a broker address; the form is pulsar://host:port", field="address")
    return match[2].strip("[]"), int(match[3] or _DEFAULT_PORTS[match[1]]), match[1] == "pulsar+ssl"


class ConnectionPool:
    """Opens connections when they are first needed, and shares them."""

    def __init__(self, options: ClientOptions) -> None:
        self.on_silent: Callable[[BrokerConnection], None] = lambda _: None  # told when a broker has not been heard of
        self._options = options
        self._connections: dict[str, BrokerConnection] = {}
        self._dialling: dict[str, asyncio.Task[BrokerConnection]] = {}
        self._closed = False
        self._tls: ClientTls | None = None

    async def get(self, url: str) -> BrokerConnection:
        """Return an open connection to ``url``.

        Raises:
            ConnectionLostError: The broker cannot be reached within the connect timeout.
            AuthenticationError: The broker refused the client's credentials, or there are none to show.
            BadRequestError: ``url`` is not a broker address.
            AlreadyClosedError: The client was closed.
        """
        if self._closed:
            raise AlreadyClosedError("the client was closed")
        connection = self._connections.get(url)
        if connection is not None and not connection.closed:
            return connection
        task = self._dialling.get(url)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._dial(url))
            self._dialling[url] = task
            task.add_done_callback(lambda _: self._dialling.pop(url, None))
        try:
            return await shielded(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise AlreadyClosedError("the client was closed") from None
            raise

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    async def _dial(self, url: str) -> BrokerConnection:
        host, port, encrypted = parse_url(url)
        context = self._tls_context() if encrypted else None
        connection: BrokerConnection | None = None
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                credentials = await self._credentials(has_certificate=encrypted)
                connection = await local_socket.open_connection(
                    lambda: BrokerConnection(url, self._options, credentials, self.on_silent), host, port, context
                )
                await connection.connected
        except TimeoutError as error:
            if connection is not None:
                connection.abort(ConnectionLostError(f"{url} did not finish the handshake in time"))
            raise ConnectionLostError(f"{url} did not answer within {self._options.connect_timeout_ms} ms") from error
        except AuthenticationError as error:
            if not self._options.lacks_credentials:
                raise
            raise AuthenticationError(
                f"{error}; this handle was unpickled, and pickles hold no token: set {TOKEN_VARIABLE} or "
                f"{TOKEN_FILE_VARIABLE} in this process, or connect with carry_token=True where it was made"
            ) from error
        except OSError as error:
            raise ConnectionLostError(f"{url} cannot be reached: {error}") from error
        except asyncio.CancelledError:  # the client was closed; the pool does not hold this connection yet
            if connection is not None:
                connection.abort(AlreadyClosedError("the client was closed"))
            raise
        self._connections[url] = connection
        return connection

    async def _credentials(self, *, has_certificate: bool) -> Credentials:
        options = self._options
        # A pickle without its token stays without an identity: the certificate's role may be another than its own.
        is_role = options.tls_certificate_file is not None and not options.lacks_credentials
        return await present(options.identity, has_certificate=has_certificate and is_role)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            options = self._options
            files = ClientTlsFiles(
                options.tls_ca_file or "", options.tls_certificate_file or "", options.tls_key_file or ""
            )
            self._tls = ClientTls(files)
        return self._tls.context
