"""A bare relay: the least work of a broker whose messages are on two of three bookies before they are acknowledged.

``python -m tests.bench.peers.relay_host <address of a bare log> ...`` sends each frame to all logs and acknowledges it
when a majority of them has. There are no topics, producers, ids, checksums, receipts with an id, metadata or recovery.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from typing_extensions import override

from tests.bench.peers.host import ACK, Appender, accept
from tests.bench.serving import serve


class Relay(Appender):
    """The logs, and how many frames each of them has acknowledged. Logs answer in order, so counts are enough."""

    def __init__(self, logs: int) -> None:
        self._acknowledged = [0] * logs
        self._place = (logs - 1) // 2  # among the counts in order: so many as a majority has
        self._durable = 0  # the count at that place
        self._on_durable: Callable[[int], None] = lambda frames: None
        self.send: Sequence[Callable[[bytes], None]] = ()  # to each log

    @override
    def append(self, parts: list[bytes], on_durable: Callable[[int], None]) -> None:
        self._on_durable = on_durable
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        for send in self.send:
            send(data)

    @override
    def stop(self) -> None:
        """The connections end with the process."""

    def acknowledged(self, log: int, frames: int) -> None:
        """Note that a log, by its number, has acknowledged so many frames more."""
        self._acknowledged[log] += frames
        durable = sorted(self._acknowledged)[self._place]
        if durable > self._durable:
            more, self._durable = durable - self._durable, durable
            self._on_durable(more)


class LogConnection(asyncio.Protocol):
    """The relay's connection to one log."""

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay = relay
        self._number = number
        self._odd_bytes = 0

    @override
    def data_received(self, data: bytes) -> None:
        frames, self._odd_bytes = divmod(self._odd_bytes + len(data), len(ACK))
        self._relay.acknowledged(self._number, frames)


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Connect to the logs, and serve."""
    addresses, loop = sys.argv[1:], asyncio.get_running_loop()
    relay, transports = Relay(len(addresses)), []
    for number, address in enumerate(addresses):
        host, _, port = address.rpartition(":")
        transport, _ = await loop.create_connection(lambda number=number: LogConnection(relay, number), host, int(port))  # type: ignore[misc]
        transports.append(cast(asyncio.WriteTransport, transport))
    relay.send = [transport.write for transport in transports]
    return await accept(relay)


if __name__ == "__main__":
    serve(start)
