"""The other end of a connection as logs and statistics name it, and what can be reached from other machines."""

from __future__ import annotations

import ipaddress
from asyncio import BaseTransport


def peer_name(transport: BaseTransport | None) -> str:
    """Return ``host:port`` of the other end; ``?:0`` if the transport is closed or does not know it."""
    found = None if transport is None else transport.get_extra_info("peername")
    return "{}:{}".format(*(found or ("?", 0))[:2])


def is_loopback(host: str) -> bool:
    """Return whether a listener on ``host`` is reached from this machine only. Of names only ``localhost`` is known."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_wildcard(host: str) -> bool:
    """Return whether a listener on ``host`` is reached at every address of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host == ""
