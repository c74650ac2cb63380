"""A forked child drops the sockets that it inherits.

A consumer is alive as long as its connection is: if a child kept a copy of the parent's sockets open, the broker would
not notice the parent's death. The child cannot close them through their event loop, because it shares the loop's epoll
object with the parent and would unregister the parent's sockets. It redirects the descriptors to /dev/null instead.
"""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

_descriptors: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_kept: list[object] = []  # owners that a child inherited: never finalised there, for the reason above


def watch(owner: object, transport: asyncio.BaseTransport) -> None:
    """Remember the socket of ``transport`` as long as ``owner`` lives."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        _descriptors[owner] = sock.fileno()


def forget(owner: object) -> None:
    """Forget the socket of ``owner`` when it is closed; the system reuses its descriptor."""
    _descriptors.pop(owner, None)


def _drop_in_child() -> None:
    inherited = list(_descriptors.items())
    _descriptors.clear()
    _kept.extend(owner for owner, _ in inherited)
    if not inherited:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for _, descriptor in inherited:
        if descriptor >= 0:
            os.dup2(nothing, descriptor)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_drop_in_child)
