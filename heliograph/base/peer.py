"""The other end of a connection, as logs and statistics name it."""

from __future__ import annotations

from asyncio import BaseTransport


def peer_name(transport: BaseTransport | None) -> str:
    """Return ``host:port`` of the other end; ``?:0`` if the transport is closed or does not know it."""
    found = None if transport is None else transport.get_extra_info("peername")
    return "{}:{}".format(*(found or ("?", 0))[:2])
