"""Keeps one connection for a session and replaces it when it breaks, until the store says that the session is over."""

from __future__ import annotations

import asyncio
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence

from heliograph.base.backoff import Backoff
from heliograph.base.errors import HeliographError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import ATTEMPT_SECONDS_MIN, RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX
from heliograph.metadata.session.session import MetadataSession


class ReconnectingSession(MetadataSession):
    """A session that a reconnector keeps connected."""

    @property
    @abstractmethod
    def attempt_seconds(self) -> float:
        """The time for one attempt to attach, if so much is left."""

    @abstractmethod
    async def attach(self, endpoint: str, seconds: float) -> None:
        """Connect to an endpoint and begin or resume the session there.

        Args:
            seconds: how long that may take; later steps, such as setting watches again, are not limited by it.

        Raises:
            OSError, TimeoutError, ConnectionLossError: the endpoint cannot be reached.
            HeliographError: as the endpoint answered.
        """

    @abstractmethod
    def is_final(self, error: HeliographError) -> bool:
        """Return whether an endpoint's answer makes another attempt useless."""


class Reconnector:
    """Attaches one session, to one endpoint after the other."""

    def __init__(self, session: ReconnectingSession, endpoints: Sequence[str]) -> None:
        assert endpoints, "a store has an address"
        self._session = session
        self._endpoints = endpoints
        self._lost = asyncio.Event()
        self.number = 0  # of the endpoint that was tried last
        self.failures = dict.fromkeys(endpoints, "not tried yet")

    @property
    def failure(self) -> str:
        return "; ".join(f"{endpoint}: {failure}" for endpoint, failure in self.failures.items())

    def connection_lost(self, endpoint: str, error: object) -> None:
        """Note that the session needs another connection, and why."""
        self.failures[endpoint] = str(error)
        self._lost.set()

    async def attach_until(self, deadline: Callable[[], float], first: int = 0) -> None:
        """Attach the session, trying the endpoints in turn until the deadline.

        Args:
            deadline: seconds, by ``now``.
            first: number of the endpoint to begin with.

        Raises:
            ConnectionLossError: the deadline passed; lists each endpoint with its latest failure.
            HeliographError: an endpoint gave a final answer.
        """
        pauses = Backoff(RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX, random.Random())
        while True:
            for number in range(first, first + len(self._endpoints)):
                self.number = number % len(self._endpoints)
                remaining = deadline() - now()
                if remaining <= 0:
                    raise ConnectionLossError(f"the metadata store cannot be reached: {self.failure}", field="url")
                share = max(remaining / len(self._endpoints), ATTEMPT_SECONDS_MIN)
                if await self._attempt(min(remaining, share, self._session.attempt_seconds)):
                    return
            await asyncio.sleep(max(0.0, min(pauses.pause(), deadline() - now())))

    async def run(self) -> None:
        """Attach the session whenever it has lost its connection. Return once it is LOST."""
        clock = self._session.clock
        while not clock.is_lost:
            await self._lost.wait()
            try:
                await self.attach_until(lambda: math.inf, self.number + 1)  # a silent store proves nothing (I13)
            except HeliographError:
                self._session.lose()

    async def _attempt(self, seconds: float) -> bool:
        endpoint = self._endpoints[self.number]
        self._lost.clear()
        try:
            await self._session.attach(endpoint, seconds)
            return True
        except TimeoutError:
            self.failures[endpoint] = f"no answer in {seconds:.1f} s"
        except OSError as error:
            self.failures[endpoint] = str(error) or type(error).__name__
        except HeliographError as error:
            if self._session.is_final(error):
                raise
            self.failures[endpoint] = str(error)
        self._session.drop()
        return False
