"""A load of messages: it is sent at a rate through a window, and failed messages are sent again if that may help."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import dataclass
from functools import partial

from heliograph.base.errors import Advice, AlreadyClosedError, HeliographError
from heliograph.cli.messages.measure import PAYLOAD_BYTES_MIN, MeasuredRun, MessageStamp, make_payload
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.types import Compression
from heliograph.protocol.message_id import MessageId

ATTEMPTS_MAX = 20
RETRY_PAUSE_SECONDS = 0.2
FILLERS = 64  # different random fillers, so that no layer can compress or cache one away


@dataclass(frozen=True, slots=True)
class MessageLoad:
    """The messages to send, and their pace.

    Attributes:
        messages: How many messages.
        size: Bytes of each.
        window: Messages sent and not yet acknowledged, at most.
        rate: Messages per second; 0 sends as fast as messages are acknowledged.
        batch_messages, linger_ms, compression: Options of the producer.
    """

    messages: int
    size: int
    window: int
    rate: float
    batch_messages: int
    linger_ms: float
    compression: Compression = "none"


class Sender:
    """Sends a load through a window. A failed message is sent again unless its error says STOP."""

    def __init__(self, producer: AsyncProducer, load: MessageLoad, run: MeasuredRun | None = None) -> None:
        self._producer = producer
        self._load = load
        self._number = secrets.randbits(63)  # tells the messages of this run from others on the topic
        self._run = run or MeasuredRun()
        self._begun = 0.0
        self._room = asyncio.Semaphore(load.window)
        filler_bytes = load.size - PAYLOAD_BYTES_MIN
        self._fillers = [os.urandom(filler_bytes) for _ in range(min(FILLERS, load.messages))]
        self._attempts: dict[int, int] = {}  # by index, of messages that failed before; at most the window
        self._retrying: set[asyncio.Task[None]] = set()  # at most the window

    async def run(self) -> MeasuredRun:
        """Send all messages, wait for every acknowledgement, and return the measured run."""
        begun = self._begun = time.perf_counter()
        for index in range(self._load.messages):
            await self._room.acquire()
            if self._load.rate:
                await _sleep_until(begun + index / self._load.rate)
            await self._send(index, time.perf_counter())
        for _ in range(self._load.window):  # the whole window is free when no message is in flight
            await self._room.acquire()
        return self._run

    async def _send(self, index: int, begun: float) -> None:
        made = MessageStamp(self._number, index, time.time_ns())
        payload = make_payload(made, self._fillers[index % len(self._fillers)])
        try:
            confirmed = await self._producer.enqueue(payload)
        except HeliographError as error:
            self._failed(index, begun, error)
        else:
            confirmed.add_done_callback(partial(self._done, index, begun))

    def _done(self, index: int, begun: float, confirmed: asyncio.Future[MessageId]) -> None:
        error = confirmed.exception() if not confirmed.cancelled() else AlreadyClosedError("cancelled")
        if error is not None:
            assert isinstance(error, HeliographError), "the client raises errors of the tree"
            self._failed(index, begun, error)
            return
        self._run.latencies.add((time.perf_counter() - begun) * 1000)
        self._run.messages += 1
        self._run.seconds = time.perf_counter() - self._begun
        self._run.bytes += self._load.size
        self._finished(index)

    def _failed(self, index: int, begun: float, error: HeliographError) -> None:
        run = self._run
        run.last_error = f"{type(error).__name__}: {error}"
        attempts = self._attempts.get(index, 0) + 1
        if error.advice is Advice.STOP or attempts == ATTEMPTS_MAX:
            run.errors += 1
            self._finished(index)
            return
        run.retries += 1
        self._attempts[index] = attempts
        task = asyncio.ensure_future(self._send_again(index, begun))
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    async def _send_again(self, index: int, begun: float) -> None:
        await asyncio.sleep(RETRY_PAUSE_SECONDS)
        await self._send(index, begun)

    def _finished(self, index: int) -> None:
        self._attempts.pop(index, None)
        self._room.release()


async def _sleep_until(moment: float) -> None:
    pause = moment - time.perf_counter()
    if pause > 0:
        await asyncio.sleep(pause)
