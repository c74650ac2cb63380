"""A listener under attack, as the campaign sees it, and the connections of its clients."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import cast

from tests.fuzz.conversation import Act, Conversation, Step

HEAR_SECONDS = 0.03  # how long a client waits for an answer that may never come; nothing is concluded from it
OPEN_SECONDS_MAX = 30.0
HEARD_BYTES_MAX = 8 << 20  # kept of what a client was sent


class BrokenPromiseError(AssertionError):
    """The listener did what no client may make it do."""


class Listener(ABC):
    """One server, in this process, and a well-behaved client of it. Each generation has its own.

    Attributes:
        name: of the listener, on the command line and in seeds.
    """

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ("127.0.0.1", 0)

    @abstractmethod
    async def start(self) -> None:
        """Start the server, set ``address``, and connect the well-behaved client."""

    @abstractmethod
    async def stop(self) -> None:
        """Disconnect the client and stop the server."""

    @classmethod
    @abstractmethod
    def conversation(cls, random: Random) -> Conversation:
        """Return what hostile clients do. The same ``random`` gives the same conversation."""

    @abstractmethod
    def examine(self, heard: bytes) -> None:
        """Check everything that one hostile connection was sent.

        Raises:
            BrokenPromiseError, or any error of the client's decoder: it is no answer that a client may be sent.
        """

    @abstractmethod
    async def work(self) -> None:
        """Have the well-behaved client write, and read what it wrote before: nothing is lost, nothing invented."""

    async def audit(self) -> None:
        """Read back everything that the well-behaved client was confirmed."""
        await self.work()

    @abstractmethod
    def held(self) -> Counter[str]:
        """Return the numbers of objects that have to come back to those before a conversation."""

    def held_long(self) -> Counter[str]:
        """Return the same of objects that outlive their connections for some time."""
        return Counter()

    def reply(self, name: str, form: bytes, heard: Sequence[bytes]) -> bytes:
        """Return the bytes of a REPLY step, empty for none.

        Args:
            form: decides which of the possible ones.
            heard: what the step's connection was sent, and then what all the others were.
        """
        raise NotImplementedError(name)


class Caller(asyncio.Protocol):
    """One connection of a hostile client."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_over = False
        self.news = asyncio.Event()
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if len(self.heard) < HEARD_BYTES_MAX:
            self.heard += data
        self.news.set()

    def eof_received(self) -> bool:
        self.is_over = True
        self.news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.transport = None
        self.news.set()
        self.gone.set()


async def converse(listener: Listener, conversation: Conversation) -> Sequence[bytes]:
    """Hold a conversation, and return what each connection heard. All of them are closed then."""
    callers: dict[int, Caller] = {}
    try:
        for step in conversation:
            if step.peer not in callers:
                callers[step.peer] = await _connected(listener)
            others = [caller for peer, caller in callers.items() if peer != step.peer]
            await _do(listener, callers[step.peer], others, step)
    finally:
        for caller in callers.values():
            if caller.transport is not None:
                caller.transport.abort()
        for caller in callers.values():
            await caller.gone.wait()
    return [bytes(caller.heard) for caller in callers.values()]


async def _connected(listener: Listener) -> Caller:
    async with asyncio.timeout(OPEN_SECONDS_MAX):
        _, caller = await asyncio.get_running_loop().create_connection(Caller, *listener.address)
    return caller


async def _do(listener: Listener, caller: Caller, others: Sequence[Caller], step: Step) -> None:
    transport = caller.transport
    match step.act:
        case Act.TURNS:
            for _ in range(step.count):
                await asyncio.sleep(0)
        case Act.HEAR:
            if not caller.is_over:
                caller.news.clear()
                try:
                    async with asyncio.timeout(HEAR_SECONDS):
                        await caller.news.wait()
                except TimeoutError:
                    pass
        case Act.SEND | Act.REPLY if transport is not None and not transport.is_closing():
            data = step.data
            if step.act is Act.REPLY:
                name, _, form = data.partition(b" ")
                data = listener.reply(name.decode(), form, [bytes(each.heard) for each in (caller, *others)])
            if caller.is_over or not data:
                return
            transport.write(data)
        case Act.EOF if transport is not None and not transport.is_closing():
            with contextlib.suppress(OSError):  # the server has reset the connection
                transport.write_eof()
        case Act.CLOSE if transport is not None:
            transport.close()
        case Act.ABORT if transport is not None:
            transport.abort()
