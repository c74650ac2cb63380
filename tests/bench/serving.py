"""The main function of servers that run as children: uvloop, one line with the address, a clean stop on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

# As in the bookie's actor: the journal's thread must not wait 5 ms for the interpreter after each sync.
SWITCH_INTERVAL_SECONDS = 0.0005


def serve(start: Callable[[], Awaitable[tuple[str, Callable[[], Awaitable[None]]]]]) -> None:
    """Run a server until SIGTERM.

    Args:
        start: starts the server and returns its address and the function that stops it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    uvloop.run(_serve(start))


async def _serve(start: Callable[[], Awaitable[tuple[str, Callable[[], Awaitable[None]]]]]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    address, stop = await start()
    print(address, flush=True)
    await stopped.wait()
    await stop()
