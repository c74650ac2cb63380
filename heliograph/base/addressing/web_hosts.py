"""Which host names a door takes in the header ``Host`` of a request.

A page of a stranger can let a name of his own point at any address that the computer of its reader reaches, loopback
included, and then read what is served there. Such a request names his host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache

ANY = "*"
FOREIGN_SITES = ("cross-site", "same-site")  # values of ``Sec-Fetch-Site``, by which browsers tell a page of elsewhere
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:\[\]/@?#]+)(?::(?P<port>\d{1,5}))?", re.IGNORECASE)
_REMEMBERED_MAX = 1024  # hosts whose verdict is kept


class WebHosts:
    """The host names of one door: those given, this machine's, names of loopback, and every address.

    Args:
        names: ``*`` for all, ``*.`` in front of a suffix.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = {name.lower().rstrip(".") for name in ("localhost", socket.gethostname(), *names) if name}
        self._takes_any = ANY in wanted
        self._names = frozenset(name for name in wanted if not name.startswith("*."))
        self._suffixes = (".localhost", *(name[1:] for name in wanted if name.startswith("*.")))
        self.takes = lru_cache(_REMEMBERED_MAX)(self._takes)

    def _takes(self, host: str) -> bool:
        """Return whether a ``Host`` header names this door.

        An address is taken as it is: a stranger can let a name of his own point here, but not an address.
        """
        if self._takes_any:
            return True
        parts = split_host(host, 0)
        if parts is None:
            return False
        name = parts[0]
        return name in self._names or name.endswith(self._suffixes) or is_address(name)


def split_host(host: str, default_port: int) -> tuple[str, int] | None:
    """Return name and port of a ``Host`` header, the name in lower case without brackets; None if it is malformed."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    name = found["name"].lower().strip("[]").rstrip(".")
    return name, int(found["port"] or default_port)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
