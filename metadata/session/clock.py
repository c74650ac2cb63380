"""A session's state by its owner's own clock, and the listeners of that state.

The times and the reason why LOST is safe are in ``metadata/session/limits.py``. The clock is the one that also runs
while the machine sleeps, so a sleeper finds its session lost when it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from heliograph.base.lifecycle import Lifecycle
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.session.callbacks import run_callback
from heliograph.metadata.session.limits import LOST_SHARE
from heliograph.metadata.store import SessionListener, SessionState

SESSION_LIFECYCLE = Lifecycle(
    {
        SessionState.SUSPENDED: (
            "There is no connection, so calls wait. Ephemerals stand.",
            {SessionState.CONNECTED, SessionState.LOST},
        ),
        SessionState.CONNECTED: (
            "Calls are sent, and watches are told of events.",
            {SessionState.SUSPENDED, SessionState.LOST},
        ),
        SessionState.LOST: (
            "The session was closed, has ended, or may have ended: its ephemerals are gone, and every call fails.",
            (),
        ),
    }
)


def now() -> float:
    """Return the seconds of the clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SessionClock:
    """One session's state; SUSPENDED until the first ``turn``. For one event loop."""

    def __init__(self, timeout: float, lose: Callable[[], None]) -> None:
        """
        Args:
            timeout: seconds, as asked for; the session sets it to what is granted.
            lose: called on the loop when a caller finds that the time is up; it must ``turn`` the state to LOST.
        """
        self._lose = lose
        self._listeners: list[SessionListener] = []
        self._confirmed_at = math.inf
        self.session_id = 0
        self.timeout = timeout
        self.announced = SessionState.SUSPENDED  # the state that the listeners know

    @property
    def state(self) -> SessionState:
        """The state now; exact, also when the loop was held up and no timer could run (I13)."""
        if self.announced is not SessionState.LOST and now() >= self.lost_at:
            asyncio.get_running_loop().call_soon(self._lose)
            return SessionState.LOST
        return self.announced

    @property
    def is_lost(self) -> bool:
        """Whether the listeners know that the session is over."""
        return self.announced is SessionState.LOST

    @property
    def confirmed_at(self) -> float:
        """When the latest request that was answered had been sent; infinity before there is one."""
        return self._confirmed_at

    @property
    def lost_at(self) -> float:
        """When the session is LOST unless it is confirmed again, by ``now``."""
        return self._confirmed_at + self.timeout * LOST_SHARE

    @property
    def over(self) -> SessionExpiredError:
        """The error that the calls of a session that is over raise."""
        return SessionExpiredError(f"metadata session {self.session_id:#x} is over")

    def check(self) -> None:
        """Raise SessionExpiredError if the session is LOST."""
        if self.state is SessionState.LOST:
            raise self.over

    def confirm(self, sent_at: float) -> None:
        """Note that the store answered a request that was sent then.

        May be called on one other thread instead of the loop's.
        """
        if self._confirmed_at == math.inf or sent_at > self._confirmed_at:
            self._confirmed_at = sent_at

    def turn(self, state: SessionState) -> None:
        """Tell the listeners of a state, if it is new."""
        if state is self.announced:
            return
        self.announced = SESSION_LIFECYCLE.move(self.announced, state)
        for listener in list(self._listeners):
            run_callback("session listener", listener, state)

    def add_listener(self, listener: SessionListener) -> None:
        """Call ``listener`` with each new state from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Undo one ``add_listener``. Nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)
