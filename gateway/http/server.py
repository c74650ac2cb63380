"""The HTTP server: uvicorn on the running event loop, on a port that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from heliograph.base.errors import ResourceError
from heliograph.base.guard import memory
from heliograph.base.interval import until_tick
from heliograph.base.peer import host_and_port
from heliograph.base.tls.contexts import ServerTls
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.listening import listening_socket
from heliograph.gateway.http.protocols import Connections, HttpProtocol, WebSocketProtocol

HEADER_BYTES_MAX = 32 * 1024  # of a request's target and headers, which hold the caller's token
SWEEP_SECONDS = 0.5  # between two looks for connections that are late
DATE_SECONDS = 1.0  # between two looks at the clock for the date of answers
PART = "gateway"  # in the budget of its process
GRACE_SECONDS = 5  # for sessions to end when the server stops


class GatewayServer:
    """One app on one listening socket, or on two: http, and https beside it if the configuration has a port for that.

    Args:
        listener: a socket that listens already; the server closes it. None: ``bind`` makes one.

    Raises:
        InvalidConfigError: a file of TLS is missing or invalid; names the setting.
    """

    def __init__(self, config: GatewayConfig, listener: socket.socket | None = None) -> None:
        self._config = config
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._sweeping: asyncio.Task[None] | None = None
        self._app: FastAPI | None = None
        self._listener = listener
        self._tls_listener: socket.socket | None = None  # beside the other one
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []  # the first has the life of the app

    @property
    def url(self) -> str:
        """Return ``http://host:port`` or ``https://host:port``, with the port that is in use."""
        assert self._listener is not None, "bind comes first"
        host, port = self._listener.getsockname()[:2]
        scheme = "http" if self._tls is None or self._config.tls_port is not None else "https"
        return f"{scheme}://{host_and_port(self._config.advertised_host or host, port)}"

    def bind(self) -> None:
        """Bind the ports, so that a port in use is known before anything else starts.

        Raises:
            ResourceError: the address cannot be used; names it.
        """
        self._listener = listening_socket(self._config.host, self._config.port)
        if self._config.tls_port is not None:
            try:
                self._tls_listener = listening_socket(self._config.host, self._config.tls_port)
            except BaseException:
                self._listener.close()
                raise

    async def start(self, app: FastAPI) -> None:
        """Serve the app. Returns once requests are answered.

        Raises:
            ResourceError: the server ended while it started.
        """
        assert self._listener is not None, "bind comes first"
        memory.host(PART, self._config.memory_bounds)
        app.state.services.metrics.tls = self._tls
        self._app = app
        connections = Connections(self._config, app.state.services.budget)
        self._sweeping = asyncio.create_task(_close_late(connections))
        doors = [(self._listener, None if self._tls_listener else self._tls)]
        if self._tls_listener is not None:
            doors.append((self._tls_listener, self._tls))
        for listener, tls in doors:
            server = _Server(_uvicorn_config(app, self._config, connections, tls, is_first=not self._servers))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            self._servers.append((server, serving))
            while not server.started:
                if serving.done():
                    raise ResourceError("the HTTP server did not start, see its log", field="port")
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """End sessions and requests within a grace time, and close the port. Idempotent."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._app is not None:
            self._app.state.services.ends.set()
        while self._servers:  # the first ends last
            server, serving = self._servers.pop()
            server.end()
            await serving
        for listener in filter(None, (self._listener, self._tls_listener)):
            listener.close()
        memory.leave(PART)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process, which is a Ray worker or a test."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Have ``serve`` return once requests had their grace time."""
        self.should_exit = True
        self._is_ending.set()

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @override
    async def main_loop(self) -> None:
        """Keep the date of the answers; uvicorn's own loop wakes the process ten times a second for it."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._is_ending.wait()


async def _close_late(connections: Connections) -> None:
    while True:
        await asyncio.sleep(until_tick(SWEEP_SECONDS))
        connections.close_late(time.monotonic())


def _uvicorn_config(
    app: FastAPI, config: GatewayConfig, connections: Connections, tls: ServerTls | None, *, is_first: bool
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(HttpProtocol, connections),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        log_config=None,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        access_log=False,
        lifespan="on" if is_first else "off",
        ws=functools.partial(WebSocketProtocol, connections),  # type: ignore[arg-type]
        ws_max_size=config.websocket_frame_bytes_max,
        ws_ping_interval=config.websocket_ping_seconds,
        ws_ping_timeout=config.websocket_idle_seconds,
        ws_per_message_deflate=False,  # compression costs more than it saves within one network
        timeout_graceful_shutdown=GRACE_SECONDS,
        proxy_headers=False,
        server_header=False,
    )
