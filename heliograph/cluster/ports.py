"""TCP ports of this machine: the choice of free ones, and the errors for taken ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from heliograph.base.errors import InvalidConfigError, ResourceError

# Below the range that Linux uses for outgoing connections (from 32768), so that a port stays free over a restart.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000
_ATTEMPTS_MAX = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a listener could bind to the port now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def pick_free(host: str = "127.0.0.1", *, taken: Collection[int] = ()) -> int:
    """Return a port that is free now and likely to stay free.

    Raises:
        ResourceError: none was found.
    """
    for _ in range(_ATTEMPTS_MAX):
        port = random.randint(_FIRST_PORT, _LAST_PORT)
        if port not in taken and is_free(port, host):
            return port
    raise ResourceError(f"no free port between {_FIRST_PORT} and {_LAST_PORT} on {host}: is the address right?")


def require_free(port: int, host: str, setting: str) -> None:
    """Check that a fixed port is free; port 0 always is.

    Raises:
        ResourceError: the port is taken; names the flag that chooses another.
        InvalidConfigError: no port of the address is free, so it is no address of this machine.
    """
    if port and not is_free(port, host):
        if not is_free(0, host):
            raise InvalidConfigError(f"{host} is no address of this machine: choose another with --host", field="host")
        raise ResourceError(
            f"port {port} on {host} is in use or not allowed: choose another with --{setting.replace('_', '-')}, "
            "or 0 for a free one",
            field=setting,
        )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
