"""The pulse of a session that lives by its calls being answered: pings, and what follows when no answer comes."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from metadata.call_queue import CallQueue
from metadata.errors import ConnectionLossError
from metadata.session_clock import SessionClock, now
from metadata.session_limits import (
    ANSWER_SECONDS_MAX,
    CALL_WAIT_SECONDS_MAX,
    PINGS_PER_TIMEOUT,
    SILENCE_SHARE,
    TICK_SECONDS_MAX,
)


class Patient(Protocol):
    """The session that a heartbeat keeps."""

    @property
    def is_attached(self) -> bool:
        """Is there a connection on which the store knows the session?"""

    def ping(self) -> None:
        """Ask the store for a sign of life."""

    def drop(self) -> None:
        """Give the connection up: it has been silent for too long."""

    def lose(self) -> None:
        """The session is over."""


class Heartbeat:
    """One session's. ``run`` goes on until the session is LOST."""

    def __init__(self, patient: Patient, clock: SessionClock, calls: CallQueue[Any]) -> None:
        self._patient = patient
        self._clock = clock
        self._calls = calls
        self._heard_at = 0.0
        self._pinged_at = 0.0

    def begin(self) -> None:
        """There is a new connection."""
        self._heard_at = self._pinged_at = now()

    def heard(self) -> None:
        """Something came in. If it came too late to prove anything, the session is lost (I13)."""
        self._heard_at = now()
        if not self._clock.is_lost and self._heard_at >= self._clock.lost_at:
            self._patient.lose()

    async def run(self) -> None:
        """Look at the clock again and again."""
        tick = min(TICK_SECONDS_MAX, self._clock.timeout / PINGS_PER_TIMEOUT / 2)
        last = now()
        while not self._clock.is_lost:
            await asyncio.sleep(max(0.0, min(tick, self._clock.lost_at - last)))
            moment = now()
            if moment - last > 2 * tick:
                self._heard_at = moment  # we slept: what we did not hear may be waiting to be read
            last = moment
            self._look(moment)

    def _look(self, moment: float) -> None:
        if moment >= self._clock.lost_at:
            self._patient.lose()
            return
        self._calls.fail_waiting(
            ConnectionLossError("no connection to the metadata store; the call was not sent"),
            began_before=moment - CALL_WAIT_SECONDS_MAX,
        )
        if not self._patient.is_attached:
            return
        timeout, sent_at = self._clock.timeout, self._calls.oldest_sent_at()
        if sent_at is not None:
            silent = moment - max(self._heard_at, sent_at)
            if silent > timeout * SILENCE_SHARE or moment - sent_at > ANSWER_SECONDS_MAX:
                self._patient.drop()
                return
        if moment - self._pinged_at >= timeout / PINGS_PER_TIMEOUT:
            self._pinged_at = moment
            self._patient.ping()
