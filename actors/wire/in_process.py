"""Bookies of this process that clients on the same event loop read batches from, past the socket.

A batch is most of a reader's bytes. Over a socket, it is copied into the kernel and out of it, by two threads that wait
for each other. Where both ends are one process, one copy is enough. All other requests use the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from heliograph.actors.errors import BookieError
from heliograph.actors.wire.messages import Answer, BookieRequest

OnBatch = Callable[[Answer | BookieError, memoryview], None]
ReadHere = Callable[[BookieRequest, OnBatch], None]  # calls the callback once, later, on the event loop


class _Offer(NamedTuple):
    secret: str | None
    read: ReadHere


_offers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Offer]] = WeakKeyDictionary()


def offer(address: str, secret: str | None, read: ReadHere) -> None:
    """Let clients on the running event loop read batches from the bookie at an address.

    Args:
        address: the ``host:port`` that clients know.
        secret: that a client has to know, as on the socket.
    """
    _offers.setdefault(asyncio.get_running_loop(), {})[address] = _Offer(secret, read)


def withdraw(address: str) -> None:
    """End the offer of an address. Idempotent."""
    _offers.get(asyncio.get_running_loop(), {}).pop(address, None)


def reads_at(address: str, secret: object) -> ReadHere | None:
    """Return how to read batches from the bookie at an address; None: use the socket."""
    its = _offers.get(asyncio.get_running_loop())
    found = None if its is None else its.get(address)
    return None if found is None or found.secret != secret else found.read
