"""The other end of a connection as logs and statistics name it, and what can be reached from other machines."""

from __future__ import annotations

import ipaddress
import socket
from asyncio import BaseTransport
from dataclasses import dataclass
from typing import Any

LOCAL_PEER = ("127.0.0.1", 0)  # address and port of a peer that came by a Unix socket
NODE = "node"  # as a host: the address of the machine that runs the listener, known only there


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server that keeps its port listens, and the host by which others reach it.

    Args:
        host: address to bind to.
        port: 0: the port of its first start.
        first_port: the port of the first start; 0: one that the system chooses.
        advertised_host: host that clients are given; empty: ``host``.
    """

    host: str
    port: int = 0
    first_port: int = 0
    advertised_host: str = ""


def host_and_port(host: str, port: int) -> str:
    """Return ``host:port``, with the brackets of an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_in(address: str) -> str:
    """Return the host of an address, which may begin with a scheme; that of IPv6 is in brackets."""
    return address.rpartition("/")[2].rpartition(":")[0]


def peer_name(transport: BaseTransport | None) -> str:
    """Return ``host:port`` of the other end; ``?:0`` if the transport is closed or does not know it."""
    return "{}:{}".format(*(_address(transport) or ("?", 0))[:2])


def peer_address(transport: BaseTransport | None) -> str:
    """Return the address of the other end, by which its connections are counted; ``?`` if it is not known.

    An IPv6 address stands for the network of 64 bits that it is in, as one machine can have all addresses of that.
    """
    found = _address(transport)
    if found is None:
        return "?"
    host = str(found[0]).partition("%")[0]
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return host
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def _address(transport: BaseTransport | None) -> tuple[Any, ...] | None:
    """Return host and port, and for IPv6 more, of the other end; None if it is not known."""
    if transport is None:
        return None
    found = transport.get_extra_info("peername")
    if isinstance(found, tuple) and found:
        return found
    family = getattr(transport.get_extra_info("socket"), "family", None)
    return LOCAL_PEER if family is not None and family == getattr(socket, "AF_UNIX", None) else None


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
