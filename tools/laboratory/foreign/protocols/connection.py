"""A connection to a server, and the two kinds of it: one that publishes and one that reads a backlog."""

from __future__ import annotations

import asyncio
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.cli.messages.measure import MeasuredRun

Answered = Callable[[int], None]
ANSWER_SECONDS_MAX = 60.0


class PeerConnection(asyncio.Protocol, ABC):
    """One connection.

    Attributes:
        stream: the name of the stream or topic.
        failed: fails with the reason when the connection ends or an answer is an error.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._buffer = bytearray()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.transport: asyncio.WriteTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self.greet()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            self.take(data)
        except (RuntimeError, ValueError, struct.error, HeliographError) as error:
            self.fail(error)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or ConnectionError("the server closed the connection"))

    def fail(self, error: BaseException) -> None:
        """End what waits for this connection."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def write(self, frame: bytes) -> None:
        """Send a frame; the frames of one iteration of the loop are sent together."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def close(self) -> None:
        """End the connection."""
        self.failed.cancel()
        if self.transport is not None:
            self.transport.close()

    def _flush(self) -> None:
        assert self.transport is not None, "it is connected before it sends"
        out, self._out = self._out, []
        self.transport.writelines(out)

    def take(self, data: bytes) -> None:
        """Take received bytes."""
        self._buffer += data
        self.parse()

    def parse(self) -> None:
        """Take whole answers from the buffer."""

    @abstractmethod
    def greet(self) -> None:
        """Begin."""


class Publisher(PeerConnection):
    """A connection that publishes. The answers come in the order of the requests.

    Attributes:
        ready: resolves when requests may be sent.
        records: messages in a request; more than 1 where the protocol has batches.
    """

    has_batches = False

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.records = 1
        self._waiting: list[tuple[Answered, int]] = []
        self._next = 0

    @override
    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if not self.ready.done():
            self.ready.set_exception(error)

    def expect(self, answered: Answered, number: int) -> None:
        """Note that one more answer is to come."""
        self._waiting.append((answered, number))

    def acknowledge(self) -> None:
        """Note the answer to the oldest request that has none."""
        answered, number = self._waiting[self._next]
        self._next += 1
        if self._next == 10_000:
            del self._waiting[: self._next]
            self._next = 0
        answered(number)

    @abstractmethod
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        """Publish a message, or a batch of equal ones."""


class Reader(PeerConnection):
    """A connection of a new consumer, which reads a backlog from its first message.

    Attributes:
        run: what was read, with the time from the first request to the last message.
        ended: resolves when ``wanted`` messages were read.
    """

    def __init__(self, stream: str, wanted: int) -> None:
        super().__init__(stream)
        self.run = MeasuredRun()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._wanted = wanted
        self._begun = 0.0

    def begin(self) -> None:
        """Note the time of the first request."""
        self._begun = time.perf_counter()

    def note(self, messages: int, size: int) -> None:
        """Note that messages were read, of so many bytes together."""
        run = self.run
        run.messages += messages
        run.bytes += size
        if run.messages >= self._wanted and not self.ended.done():
            run.seconds = time.perf_counter() - self._begun
            self.ended.set_result(None)
