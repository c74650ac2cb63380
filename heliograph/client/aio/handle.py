"""The base of all async handles: they open at their first use, by ``await handle`` or by ``async with handle``."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Generator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from heliograph.base.completion import shielded
from heliograph.base.errors import AlreadyClosedError, WrongLoopError
from heliograph.base.lifecycle import Lifecycle


class HandleState(enum.Enum):
    """Whether a handle may be used."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    FINISHING = "finishing"
    CLOSED = "closed"


HANDLE_LIFECYCLE = Lifecycle(
    {
        HandleState.NEW: (
            "Never opened, or the last attempt failed or was abandoned. The next use opens the handle.",
            {HandleState.OPENING, HandleState.FINISHING, HandleState.CLOSED},
        ),
        HandleState.OPENING: (
            "One attempt to open is running; every caller waits for it.",
            {HandleState.NEW, HandleState.OPEN, HandleState.FINISHING, HandleState.CLOSED},
        ),
        HandleState.OPEN: ("Calls are served.", {HandleState.FINISHING, HandleState.CLOSED}),
        HandleState.FINISHING: (
            "The handle is being closed. New calls are refused; calls that began before are served first.",
            {HandleState.CLOSED},
        ),
        HandleState.CLOSED: ("Calls are refused for good. Earlier messages may still be confirmed.", ()),
    }
)


_IN_LOOP = (HandleState.OPENING, HandleState.OPEN, HandleState.FINISHING)


class AsyncHandle:
    """A handle that opens at its first use, or earlier when it is awaited.

    A failed opening is tried again at the next use. An opening is abandoned when the last caller that waits for it is
    cancelled. A closing runs to its end even if its caller is cancelled: an interrupted close would leave the handle
    registered at the broker.

    An open handle lives in one event loop: in another one, as in a forked child, every call raises WrongLoopError.
    """

    def __init__(self) -> None:
        self._state = HandleState.NEW
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it was opened last
        self._opening: asyncio.Task[None] | None = None  # set while OPENING
        self._openers = 0  # callers that wait for an opening
        self._closing: asyncio.Task[None] | None = None  # set once CLOSED

    @property
    def is_open(self) -> bool:
        """Return whether the handle was opened and not closed since."""
        return self._state is HandleState.OPEN

    async def open(self) -> Self:
        """Open the handle if it is not open yet, and return it; its class says what that can raise.

        Raises:
            AlreadyClosedError: The handle was closed.
            WrongLoopError: It is open in another event loop, or in the parent of this process.
        """
        self._check_loop()
        if self._state is HandleState.OPEN:
            return self
        if self._state in (HandleState.FINISHING, HandleState.CLOSED):
            raise AlreadyClosedError(f"this {type(self).__name__} was closed")
        if self._opening is None:
            self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.OPENING)
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self._do_open())
            self._opening.add_done_callback(self._on_opened)
        await self._wait_for(self._opening)
        return self

    async def _wait_for(self, opening: asyncio.Task[None]) -> None:
        self._openers += 1
        try:
            await shielded(opening)
        except asyncio.CancelledError:
            if self._openers == 1 and self._opening is opening and not opening.done():
                # A producer that waits for exclusive access must not be given it after its caller is gone.
                if self._state is HandleState.OPENING:
                    self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.NEW)
                self._opening = None
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            if self._state is HandleState.CLOSED and not _is_cancelled():
                raise AlreadyClosedError(f"this {type(self).__name__} was closed while it opened") from None
            raise
        finally:
            self._openers -= 1

    def _on_opened(self, opening: asyncio.Task[None]) -> None:
        if self._opening is not opening:
            return  # abandoned, or the handle was closed meanwhile
        # An opening that succeeds as its only waiter is cancelled counts: the next caller finds the handle open.
        failed = opening.cancelled() or opening.exception() is not None
        if self._state is HandleState.OPENING:
            self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.NEW if failed else HandleState.OPEN)
        self._opening = None

    async def close(self) -> None:
        """Close the handle; a second call waits for the end of the first."""
        if self._closing is None:
            self._check_loop()
            self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.FINISHING)
            if not self._unfinished():
                self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.CLOSED)
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    def _check_loop(self) -> None:
        if self._state in _IN_LOOP and asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(
                f"this {type(self).__name__} was opened in another event loop or process: make a client in this one "
                "by heliograph.connect_async"
            )

    def _unfinished(self) -> Collection[asyncio.Future[None]]:
        """Return a future for each call that closing has to wait for. For handles only."""
        return ()

    async def _close(self) -> None:
        if self._state is HandleState.FINISHING:
            # The last call may have ended since: `close` only made the task that runs this.
            if unfinished := self._unfinished():
                await asyncio.wait(unfinished)
            self._state = HANDLE_LIFECYCLE.move(self._state, HandleState.CLOSED)
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
    """Return whether the caller itself is cancelled, and not its awaited work."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Partition(Protocol):
    """A producer or a consumer of one partition."""

    async def open(self) -> None:
        """Register with the broker that owns the partition."""

    async def close(self) -> None:
        """Leave the partition; nothing happens if it was never opened."""


async def open_all(parts: Sequence[Partition]) -> None:
    """Open all of ``parts``, or none: if one fails, or the caller is cancelled, all are closed again.

    Raises:
        HeliographError: The first failure.
    """
    try:
        results = await asyncio.gather(*(part.open() for part in parts), return_exceptions=True)
    except asyncio.CancelledError:
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        raise
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        raise failures[0]
