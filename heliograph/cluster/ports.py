"""Addresses and TCP ports of this machine: the choice of free ones, and the errors for taken ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from heliograph.base.errors import InvalidConfigError, ResourceError
from heliograph.base.peer import NODE, is_wildcard

# Below the range that Linux uses for outgoing connections (from 32768), so that a port stays free over a restart.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000
_ATTEMPTS_MAX = 200
_PORTS = frozenset({"port", "tls_port", "first_port"})  # of a configuration, where 0 is a free one


@dataclass(frozen=True, slots=True)
class Machine:
    """How a machine is reached.

    Args:
        address: of its Ray node.
        name: its host name.
        advertised_host: the label ``heliograph.io/host`` of its Ray node; empty without one.
    """

    address: str
    name: str
    advertised_host: str = ""

    def listening(self, config: Any, key: str) -> Any:
        """Return a configuration with the address, the advertised host and the ports that a part has on this machine.

        Args:
            config: a dataclass with ``host``, ``port`` and ``advertised_host``, perhaps ``tls_port``.
            key: name of the part. A free port is looked for in an order that it decides, so that a part that is started
                again has its port again.

        Raises:
            ResourceError: no port is free.
        """
        host = self._bound(config)
        values: dict[str, Any] = {"host": host, "advertised_host": self.advertised(config)}
        chosen: set[int] = set()
        has = {item.name for item in fields(config)}
        for name in sorted(_PORTS & has - ({"port"} if "first_port" in has else set())):
            if getattr(config, name) == 0:
                values[name] = pick_free(host, taken=chosen, key=f"{key}/{name}")
                chosen.add(values[name])
        return replace(config, **values)

    def advertised(self, config: Any) -> str:
        """Return the host at which others reach a part; empty: the host that it binds to."""
        reached_at = (config.advertised_host or "").replace("{hostname}", self.name).replace("{address}", self.address)
        if not reached_at and (self.advertised_host or config.host == NODE or is_wildcard(self._bound(config))):
            return self.advertised_host or self.address
        return str(reached_at)

    def _bound(self, config: Any) -> str:
        return self.address if config.host == NODE else str(config.host)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a listener could bind to the port now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def pick_free(host: str = "127.0.0.1", *, taken: Collection[int] = (), key: str | None = None) -> int:
    """Return a port that is free now and likely to stay free.

    Args:
        key: decides the order in which ports are tried; None: a random one.

    Raises:
        ResourceError: none was found.
    """
    order = random.Random(key)
    for _ in range(_ATTEMPTS_MAX):
        port = order.randint(_FIRST_PORT, _LAST_PORT)
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


def require_distinct(ports: Mapping[str, int]) -> None:
    """Check that no two settings name one port; 0 is none.

    Raises:
        InvalidConfigError: two do; names them.
    """
    taken: dict[int, str] = {}
    for field, port in ports.items():
        if port and port in taken:
            raise InvalidConfigError(
                f"{field} and {taken[port]} are both {port}: give them different ports, or 0 for a free port",
                field=field,
                limit="ports differ",
            )
        taken[port] = field


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
