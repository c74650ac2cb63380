"""A producer that publishes at a fixed rate and records when each message was confirmed."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from types import TracebackType
from typing import Self

from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.protocol.message_id import MessageId

SIZE = 1 << 10
RATE = 500.0  # messages per second
CONFIRM_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.005


class SteadyPublisher:
    """A producer that publishes for the duration of an ``async with`` block. Times are of ``time.perf_counter``."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self._payload = os.urandom(SIZE)
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._waiting: dict[int, float] = {}  # number -> sent at
        self._confirmed: list[tuple[float, float]] = []  # sent at, confirmed at
        self.failures: list[BaseException] = []

    @property
    def messages(self) -> int:
        """Return the number of confirmed messages."""
        return len(self._confirmed)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping = True
        assert self._task is not None, "the block was entered"
        await self._task

    def longest_wait(self, since: float, until: float) -> float:
        """Return the longest time, in seconds, that a message sent in that interval waited for its confirmation.

        A message that still waits counts with its time up to now.
        """
        now = time.perf_counter()
        waits = [confirmed - sent for sent, confirmed in self._confirmed if since <= sent <= until]
        waits += [now - sent for sent in self._waiting.values() if since <= sent <= until]
        return max(waits, default=0.0)

    def percentile(self, since: float, until: float, share: float) -> float:
        """Return the time, in seconds, within which that share of the messages was confirmed that were sent then."""
        waits = sorted(confirmed - sent for sent, confirmed in self._confirmed if since <= sent <= until)
        assert waits, "messages were confirmed"
        return waits[int(share * (len(waits) - 1) + 0.5)]

    async def resumed_after(self, moment: float, seconds_max: float) -> float:
        """Return the seconds from ``moment`` to the first confirmation of a message that was sent later.

        Raises:
            TimeoutError: there was none in time.
        """
        while time.perf_counter() - moment < seconds_max:
            later = [confirmed for sent, confirmed in self._confirmed[-int(RATE) :] if sent > moment]
            if later:
                return min(later) - moment
            await asyncio.sleep(_POLL_SECONDS)
        raise TimeoutError(f"publishing did not resume within {seconds_max:.0f} s")

    async def _run(self) -> None:
        begun = time.perf_counter()
        number = 0
        while not self._is_stopping:
            pause = begun + number / RATE - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            self._waiting[number] = time.perf_counter()
            future = await self._producer.enqueue(self._payload)
            future.add_done_callback(partial(self._done, number))
            number += 1
        async with asyncio.timeout(CONFIRM_SECONDS_MAX):
            await self._producer.flush()

    def _done(self, number: int, confirmed: asyncio.Future[MessageId]) -> None:
        sent = self._waiting.pop(number)
        error = confirmed.exception()
        if error is None:
            self._confirmed.append((sent, time.perf_counter()))
        else:
            self.failures.append(error)
