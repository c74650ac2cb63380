"""Waiters for a record of the journal: a future, a fence, or nobody. They are woken on the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.actors.bookie.store.ledgers import StoredLedger
from heliograph.actors.errors import BookieStorageError


class FutureWaiter:
    """Resolves a future when its record is durable."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        _end(self.future, error)


class _Nobody:
    """Waits for records that nobody waits for."""

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Do nothing: a journal that failed ends the bookie by itself."""


NOBODY = _Nobody()


class FenceWaiter:
    """Moves a ledger's fence on when its record is durable, and resolves the fence's waiters."""

    def __init__(self, state: StoredLedger) -> None:
        self._state = state

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        fence = self._state.fence
        for future in fence.written() if error is None else fence.failed():
            _end(future, error)


def _end(future: asyncio.Future[None], error: BookieStorageError | None) -> None:
    if future.done():
        return  # the waiting task was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
