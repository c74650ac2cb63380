"""The heartbeat of a session that is kept by the answers to its calls: pings, and the reaction to silence."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from heliograph.base.interval import until_tick
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.call_queue import CallQueue
from heliograph.metadata.session.clock import SessionClock, now
from heliograph.metadata.session.limits import (
    ANSWER_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    PINGS_PER_TIMEOUT,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)


class Pinging(Protocol):
    """The session that a heartbeat keeps."""

    @property
    def is_attached(self) -> bool:
        """Whether there is a connection on which the store knows the session."""

    def ping(self) -> None:
        """Ask the store for a sign of life."""

    def drop(self) -> None:
        """Break the connection: it has been silent for too long."""


class Heartbeat:
    """The heartbeat of one session."""

    def __init__(self, session: Pinging, clock: SessionClock, calls: CallQueue[Any]) -> None:
        self._session = session
        self._clock = clock
        self._calls = calls
        self._heard_at = 0.0
        self._pinged_at = 0.0

    def begin(self) -> None:
        """Note that there is a new connection."""
        self._heard_at = self._pinged_at = now()

    def heard(self) -> None:
        """Note that something arrived."""
        self._heard_at = now()

    async def run(self) -> None:
        """Check the clock regularly. Return when the session is LOST."""
        tick = min(TICK_SECONDS_MAX, self._clock.timeout / PINGS_PER_TIMEOUT / 2)
        last = now()
        while not self._clock.is_lost:
            await asyncio.sleep(until_tick(tick))
            moment = now()
            if moment - last > 2 * tick:
                self._heard_at = moment  # the loop did not run: answers may be waiting to be read
            last = moment
            self._look(moment)

    def _look(self, moment: float) -> None:
        self._calls.fail_waiting(
            ConnectionLossError("no connection to the metadata store; the call was not sent"),
            began_before=moment - CALL_WAIT_SECONDS_MAX,
        )
        if not self._session.is_attached:
            return
        timeout, sent_at = self._clock.timeout, self._calls.oldest_sent_at()
        if sent_at is not None:
            silent = moment - max(self._heard_at, sent_at)
            if silent > timeout * SILENCE_SHARE or moment - sent_at > ANSWER_SECONDS_MAX:
                self._session.drop()
                return
        if moment - self._pinged_at >= timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = moment
            self._session.ping()
