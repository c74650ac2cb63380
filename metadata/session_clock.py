"""Whether a session still stands, by its owner's own clock, and who is to be told.

The times and the reason why LOST is safe are in ``metadata/session_limits.py``. The clock is the one that also runs
while the machine sleeps, so a sleeper finds its session lost when it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from metadata.errors import SessionExpiredError
from metadata.session_limits import LOST_SHARE
from metadata.store import SessionListener, SessionState


def now() -> float:
    """Seconds of the clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SessionClock:
    """One session's state; SUSPENDED until the first ``turn``. For the loop on which it was made."""

    def __init__(self, timeout: float, lose: Callable[[], None]) -> None:
        """
        Args:
            timeout: seconds, asked for; to be set to what is granted.
            lose: called on the loop when somebody finds that the time is up; has to ``turn`` the state to LOST.
        """
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._listeners: list[SessionListener] = []
        self._confirmed_at = math.inf
        self.session_id = 0
        self.timeout = timeout
        self.announced = SessionState.SUSPENDED  # the state that the listeners know

    @property
    def state(self) -> SessionState:
        """The state now; exact, also when the loop was held up and no timer could run (I13)."""
        if self.announced is not SessionState.LOST and now() >= self.lost_at:
            self._loop.call_soon(self._lose)
            return SessionState.LOST
        return self.announced

    @property
    def is_lost(self) -> bool:
        """Whether the listeners know that the session is over."""
        return self.announced is SessionState.LOST

    @property
    def confirmed_at(self) -> float:
        """When the latest request that was answered had been sent; never, before there is one."""
        return self._confirmed_at

    @property
    def lost_at(self) -> float:
        """When the session is LOST unless it is confirmed again, by ``now``."""
        return self._confirmed_at + self.timeout * LOST_SHARE

    @property
    def over(self) -> SessionExpiredError:
        """What calls of a session that is over raise."""
        return SessionExpiredError(f"metadata session {self.session_id:#x} is over")

    def confirm(self, sent_at: float) -> None:
        """The store answered a request that was sent then. May be called on one other thread in the loop's place."""
        if self._confirmed_at == math.inf or sent_at > self._confirmed_at:
            self._confirmed_at = sent_at

    def turn(self, state: SessionState) -> None:
        """Tell the listeners of a state, if it is new. What they raise is the loop's to report."""
        if state is self.announced:
            return
        self.announced = state
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a session listener failed", "exception": error})

    def add_listener(self, listener: SessionListener) -> None:
        """Have ``listener`` called with each new state."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Not have it called any more; nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)
