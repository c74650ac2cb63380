"""Which bookies are on this machine: their copies are read first, so that they do not cross the network."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from heliograph.client.discovery import is_this_machine


def nearby_bookies(addresses: Mapping[str, str]) -> frozenset[str]:
    """Return the bookies whose address (``host:port`` or ``tls://host:port``, by bookie) is one of this machine."""
    return frozenset(bookie for bookie, address in addresses.items() if _is_near(_host_of(address)))


def _host_of(address: str) -> str:
    return address.rpartition("/")[2].rpartition(":")[0]


@functools.lru_cache(maxsize=1024)  # I15
def _is_near(host: str) -> bool:
    return is_this_machine(host)
