"""Closes what clients have open once they have lost the right to it.

A change of a tenant or namespace leads to a look at what is open in it, and now and then there is a look at everything,
in case a change was missed, or came while something was being opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from heliograph.actors.broker.authorization import AuthorizedClient, Authorizer, HeldRight
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError

OPENED_BETWEEN_TURNS = 200  # that are looked at in one turn of the loop
REST_SECONDS = 0.2  # between two looks, in which further changes join the next one
RETRY_SECONDS = 1.0  # after records could not be read

log = logging.getLogger(__name__)

_Question = tuple[tuple[str, ...], HeldRight]


class RevocableConnection(AuthorizedClient, Protocol):
    """A client's connection with its open handles."""

    @property
    def opened(self) -> list[Callable[[], Iterable[HeldRight]]]:
        """Return functions that list the client's open handles, one for each kind."""


class Revocation:
    """The looks at the open producers, consumers and watchers of one broker.

    Args:
        connections: returns the open connections.
        check_seconds: the time between two looks at everything.
    """

    def __init__(
        self,
        authorizer: Authorizer,
        connections: Callable[[], Iterable[RevocableConnection]],
        check_seconds: float,
    ) -> None:
        self.closed_total = 0
        self._authorizer = authorizer
        self._connections = connections
        self._check_seconds = check_seconds
        self._changed: set[str] = set()  # tenants and namespaces; "" stands for all
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look, where callers need rights at all."""
        if self._authorizer.is_enabled:
            self._authorizer.on_changed.append(self._mark)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        await end_task(self._task)
        self._task = None

    def _mark(self, name: str) -> None:
        self._changed.add(name)
        self._wake.set()

    async def _run(self) -> None:
        next_full = time.monotonic() + self._check_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, next_full - time.monotonic()))
            self._wake.clear()
            changed, self._changed = self._changed, set()
            if time.monotonic() >= next_full:
                changed.add("")
                next_full = time.monotonic() + self._check_seconds
            try:
                await self._look(changed)
            except HeliographError as error:
                log.warning("rights cannot be checked: %s", error)
                self._changed |= changed
                self._wake.set()
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(REST_SECONDS)

    async def _look(self, changed: set[str]) -> None:
        """Close handles in some tenants and namespaces that lost their right. Each right is checked once for all."""
        if "" in changed:
            self._authorizer.forget_all()
        answers: dict[_Question, bool] = {}
        number, before = 0, self.closed_total
        for connection in list(self._connections()):
            principal = connection.principal
            if principal.is_internal:
                continue
            for opened in (each for part in connection.opened for each in part()):
                number += 1
                if number % OPENED_BETWEEN_TURNS == 0:
                    await asyncio.sleep(0)
                tenant = opened.namespace.partition("/")[0]
                if changed.isdisjoint(("", tenant, opened.namespace)):
                    continue
                question = (principal.roles, opened._replace(close=_nothing))
                if question not in answers:
                    answers[question] = await self._authorizer.permits(principal, *opened[:4])
                if not answers[question]:
                    self.closed_total += 1
                    log.debug("%s lost the right to %s %s", principal, opened.right.value, opened.target)
                    opened.close()
        if self.closed_total > before:
            log.info("closed %d producers, consumers and watchers without a right", self.closed_total - before)


def _nothing() -> None:
    """Do nothing: stands for what closes something, which does not matter to the question."""
