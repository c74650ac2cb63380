"""The listening socket of the HTTP server. This loads no framework, so that a port can be bound long before an app."""

from __future__ import annotations

import errno
import socket

from heliograph.base.errors import ResourceError

BACKLOG_MAX = 2048  # connections that wait to be accepted


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a bound and listening TCP socket.

    Raises:
        ResourceError: the host does not resolve, or the port is in use or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ResourceError(f"host {host!r} does not resolve: {error}", field="host") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG_MAX)  # a port that another socket listens on fails only here
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} on {host} is in use: stop its server, or choose another port (0: any free port)"
        else:
            reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise ResourceError(reason, field="port") from error
    return listener
