"""One connection per broker."""

from __future__ import annotations

import asyncio
import re
import ssl

from heliograph.aio.connection import Connection
from heliograph.errors import AlreadyClosedError, BadRequestError, ConnectionLostError, ResourceError
from heliograph.options import ClientOptions

_URL = re.compile(r"(pulsar|pulsar\+ssl)://(\[[^\]]+\]|[^:/,]+)(?::([0-9]{1,5}))?/?")
_DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def parse_url(url: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is asked for.

    Raises:
        BadRequestError: not of the form ``pulsar://host[:port]`` or ``pulsar+ssl://host[:port]``.
    """
    match = _URL.fullmatch(url)
    if match is None or (match[3] is not None and not 0 < int(match[3]) < 65536):
        raise BadRequestError(f"{url!r} is no broker address; the form is pulsar://host:port", field="address")
    return match[2].strip("[]"), int(match[3] or _DEFAULT_PORTS[match[1]]), match[1] == "pulsar+ssl"


class ConnectionPool:
    """Opens connections when they are first needed and shares them."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._connections: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    async def get(self, url: str) -> Connection:
        """An open connection to ``url``.

        Raises:
            ConnectionLostError: the broker cannot be reached within the connect timeout.
            NotPermittedError: it refused the client's token.
            BadRequestError: ``url`` is no broker address.
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
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise AlreadyClosedError("the client was closed") from None
            raise

    async def close(self) -> None:
        """Closes every connection."""
        self._closed = True
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # let the transports close their sockets

    async def _dial(self, url: str) -> Connection:
        host, port, encrypted = parse_url(url)
        context = self._tls_context() if encrypted else None
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(
                    lambda: Connection(url, self._options), host, port, ssl=context
                )
                await connection.connected
        except TimeoutError as error:
            if connection is not None:
                connection.abort(ConnectionLostError(f"{url} did not finish the handshake in time"))
            raise ConnectionLostError(f"{url} did not answer within {self._options.connect_timeout_ms} ms") from error
        except OSError as error:
            raise ConnectionLostError(f"{url} cannot be reached: {error}") from error
        except asyncio.CancelledError:  # the client is closed, and knows of this connection from here only
            if connection is not None:
                connection.abort(AlreadyClosedError("the client was closed"))
            raise
        self._connections[url] = connection
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        options = self._options
        try:
            context = ssl.create_default_context(cafile=options.tls_ca_file)
        except OSError as error:
            raise ResourceError(
                f"the certificates in {options.tls_ca_file} cannot be read: {error}", field="tls_ca_file"
            ) from error
        if options.tls_certificate_file is not None:
            try:
                context.load_cert_chain(options.tls_certificate_file, options.tls_key_file)
            except OSError as error:
                raise ResourceError(
                    f"the certificate in {options.tls_certificate_file} cannot be used: {error}",
                    field="tls_certificate_file",
                ) from error
        return context
