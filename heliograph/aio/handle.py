"""What all async handles share: they open when first needed, by ``await handle`` or ``async with handle``."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from heliograph.errors import AlreadyClosedError


class AsyncHandle:
    """A handle that opens at its first use and can be opened ahead by awaiting it.

    A failed opening is tried again at the next use; one that nobody waits for any more is given up. A closed handle
    stays closed, and a closing that nobody waits for any more goes on: half of one would keep a place at the broker.
    """

    def __init__(self) -> None:
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0  # callers that wait for it
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed since."""
        return self._is_open and not self._is_closed

    async def open(self) -> Self:
        """Opens the handle if it is not open yet; the class says what that can raise.

        Raises:
            AlreadyClosedError: the handle was closed.
        """
        if self._is_closed:
            raise AlreadyClosedError(f"this {type(self).__name__} was closed")
        if not self._is_open:
            if self._opening is None or _has_failed(self._opening):
                self._opening = asyncio.get_running_loop().create_task(self._do_open())
            await self._wait_for(self._opening)
            self._is_open = True
        return self

    async def _wait_for(self, opening: asyncio.Task[None]) -> None:
        self._openers += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self._openers == 1 and self._opening is opening and not opening.done():
                self._opening = None  # who waits for a turn and is gone must not be given it later
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            if self._is_closed and not _is_cancelled():
                raise AlreadyClosedError(f"this {type(self).__name__} was closed while it opened") from None
            raise
        finally:
            self._openers -= 1

    async def close(self) -> None:
        """Closes the handle; a second call waits for the end of the first."""
        if self._closing is None:
            self._is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        await self._do_close()

    async def _do_open(self) -> None:
        raise AssertionError("each handle says how it opens")

    async def _do_close(self) -> None:
        raise AssertionError("each handle says how it closes")

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _is_cancelled() -> bool:
    """Whether it is the caller itself that is cancelled, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _has_failed(opening: asyncio.Task[None]) -> bool:
    """One that succeeded while its only waiter gave up counts: whoever opens next finds it done."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
