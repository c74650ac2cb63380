"""Which host names and which web pages the gateway serves.

A browser sends a page's requests to any address that the computer reaches, loopback included. Two headers, which a page
cannot change, tell a page of the gateway from others: ``Host`` is the name that the page was loaded from or asks, and
``Origin`` is the page's own address. Programs that are no browsers send no ``Origin``.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from heliograph.base.addressing.web_hosts import ANY, WebHosts, is_address, split_host
from heliograph.gateway.config import GatewayConfig

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class AllowedOrigins:
    """The host names and origins of one gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        self._origins = frozenset(origin.lower() for origin in config.allowed_origins)
        self.takes_host = WebHosts((config.host, config.advertised_host, *config.allowed_hosts)).takes

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


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_address(name) and ipaddress.ip_address(name).is_loopback
