"""Which host names and which web pages the gateway serves.

A browser sends a page's requests to any address that the computer reaches, loopback included. Two headers, which a page
cannot change, tell a page of the gateway from others: ``Host`` is the name that the page was loaded from or asks, and
``Origin`` is the page's own address. Programs that are no browsers send no ``Origin``.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from heliograph.gateway.config import GatewayConfig

ANY = "*"
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:\[\]/@?#]+)(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_REMEMBERED_MAX = 1024  # hosts whose verdict is kept


class AllowedOrigins:
    """The host names and origins of one gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        own = {"localhost", config.host, config.advertised_host, socket.gethostname()}
        wanted = {name.lower().rstrip(".") for name in (*own, *config.allowed_hosts) if name}
        self._takes_any_host = ANY in wanted
        self._names = frozenset(name for name in wanted if not name.startswith("*."))
        self._suffixes = (".localhost", *(name[1:] for name in wanted if name.startswith("*.")))
        self._origins = frozenset(origin.lower() for origin in config.allowed_origins)
        self.takes_host = lru_cache(_REMEMBERED_MAX)(self._takes_host)

    @property
    def is_shared(self) -> bool:
        """Whether pages of other origins are served, so that answers depend on the origin."""
        return bool(self._origins)

    def is_configured(self, origin: str) -> bool:
        """Return whether a page of another origin is served, because the configuration names it."""
        return ANY in self._origins or origin.lower() in self._origins

    def allows_credentials(self, origin: str) -> bool:
        """Return whether such a page may send what the browser adds by itself: only an origin named in full may."""
        return origin.lower() in self._origins

    def is_own(self, origin: str, host: str) -> bool:
        """Return whether a page is one of the gateway: its address is the one asked, or another name of loopback."""
        try:
            page = urlsplit(origin.lower())
            port = page.port or _DEFAULT_PORTS[page.scheme]
        except (ValueError, KeyError):
            return False
        asked = split_host(host, _DEFAULT_PORTS[page.scheme])
        if asked is None or page.hostname is None or f"{page.scheme}://{page.netloc}" != origin.lower():
            return False
        name = page.hostname.rstrip(".")
        return port == asked[1] and (name == asked[0] or (_is_loopback(name) and _is_loopback(asked[0])))

    def _takes_host(self, host: str) -> bool:
        """Return whether a ``Host`` header names this gateway.

        An address is taken as it is: a stranger can let a name of his own point here, but not an address.
        """
        if self._takes_any_host:
            return True
        parts = split_host(host, 0)
        if parts is None:
            return False
        name = parts[0]
        return name in self._names or name.endswith(self._suffixes) or _is_address(name)


def split_host(host: str, default_port: int) -> tuple[str, int] | None:
    """Return name and port of a ``Host`` header, the name in lower case without brackets; None if it is malformed."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    name = found["name"].lower().strip("[]").rstrip(".")
    return name, int(found["port"] or default_port)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
