"""Sockets between our own client and the broker's own protocol: bytes in order, until the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

from tests.simulation.cluster.network import Network
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.topic.scene import Client, Link
from tests.simulation.world import Action, World

SPLITS = 0.2  # of the writes, which arrive in two parts: the connection may break between them


class SocketEnd:
    """One end of a socket: the part of ``asyncio.Transport`` that the protocols use."""

    peer: SocketEnd

    def __init__(
        self, loop: SimulatedLoop, send: Callable[[Action], None], cut: Callable[[], None], random: Random
    ) -> None:
        self.cut = cut
        self.protocol: asyncio.Protocol | None = None
        self.is_closed = False
        self.breaks = ""  # "before" or "after": the connection breaks then with the next bytes that arrive
        self._loop = loop
        self._send = send
        self._random = random
        self._is_paused = False
        self._is_lost = False
        self._held: list[bytes] = []  # that came while the socket was not read

    def open(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        with self._loop.running():
            protocol.connection_made(cast(asyncio.Transport, self))

    # -- asyncio.Transport

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes, sometimes in two parts."""
        if self.is_closed:
            return
        whole = bytes(data)
        cut = self._random.randrange(len(whole)) if self._random.random() < SPLITS else 0
        for part in (whole[:cut], whole[cut:]):
            if part:
                self._send(lambda part=part: self.peer.arrive(part))  # type: ignore[misc]

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        """Close the socket after what was written."""
        if self.is_closed:
            return
        self.is_closed = True
        self._send(lambda: self.peer.lost())
        with self._loop.running():
            self._loop.call_soon(self.lost)

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        held, self._held = self._held, []
        for data in held:
            self._loop.call_soon(self.arrive, data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: what is written is on its way."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("simulated", 1) if name == "peername" else default

    # -- from the network

    def arrive(self, data: bytes) -> None:
        """Receive bytes."""
        if self.is_closed or self.protocol is None:
            return
        if self._is_paused:
            self._held.append(data)
            return
        breaks, self.breaks = self.breaks, ""
        if breaks:
            self.cut()
        if breaks == "before":
            return
        with self._loop.running():
            self.protocol.data_received(data)

    def lost(self) -> None:
        """Tell the protocol once that the connection ended."""
        self.is_closed = True
        if self.protocol is not None and not self._is_lost:
            self._is_lost = True
            with self._loop.running():
                self.protocol.connection_lost(None)


class Socket:
    """A connection from a client to a broker."""

    def __init__(
        self, world: World, network: Network, client: Client, loop: SimulatedLoop, broker: TopicBroker, random: Random
    ) -> None:
        self.link = Link(world, network, client, broker)
        self.near = SocketEnd(loop, self.link.ask, self.link.cut, random)
        self.far = SocketEnd(broker.loop, self.link.tell, self.link.cut, random)
        self.near.peer, self.far.peer = self.far, self.near
        self.link.on_broken = self.near.lost
        self.link.on_gone = self.far.lost

    @property
    def is_open(self) -> bool:
        """Whether the client may use it."""
        return not self.link.is_broken and not self.near.is_closed
