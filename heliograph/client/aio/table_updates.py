"""The changes of a table view, for one caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic

from heliograph.client.types import Value


class TableUpdates(AsyncIterator[tuple[str, Value | None]], Generic[Value]):
    """The changes of a table view from a moment on: keys with their new values, None for a key that was deleted.

    A caller that is slower than the topic gets the newest value of each key, not each value: what waits is bounded by
    the keys. # I15
    """

    def __init__(self) -> None:
        self._changed: dict[str, Value | None] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    async def __anext__(self) -> tuple[str, Value | None]:
        while not self._changed:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        key = next(iter(self._changed))
        return key, self._changed.pop(key)

    def put(self, key: str, value: Value | None) -> None:
        """Add a change."""
        self._changed.pop(key, None)  # a key that changes again comes in its new place
        self._changed[key] = value
        self._arrived.set()

    def end(self, failure: BaseException) -> None:
        """Raise ``failure`` when the changes so far were taken; StopAsyncIteration ends the iteration."""
        self._failure = failure
        self._arrived.set()
