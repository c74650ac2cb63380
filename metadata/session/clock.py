"""A session's state, the listeners of that state, and how long the store has been silent.

The times are in ``metadata/session/limits.py``. The clock also runs while the machine sleeps, so after waking up a
process finds its session in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from heliograph.base.lifecycle import Lifecycle
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.session.limits import DOUBT_SHARE
from heliograph.metadata.store import SessionListener, SessionState

T = TypeVar("T")
SESSION_LIFECYCLE = Lifecycle(
    {
        SessionState.SUSPENDED: (
            "There is no connection, so calls wait. Ephemerals stand, unless the session is in doubt.",
            {SessionState.CONNECTED, SessionState.LOST},
        ),
        SessionState.CONNECTED: (
            "Calls are sent, and watches get events.",
            {SessionState.SUSPENDED, SessionState.LOST},
        ),
        SessionState.LOST: (
            "The session was closed, or the store said that it is over: its ephemerals are gone, and every call fails.",
            (),
        ),
    }
)


# Returns the seconds of the clock that also runs while the machine sleeps; that of macOS has the other name.
now: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SessionClock:
    """One session's state; SUSPENDED until the first ``turn``. For one event loop."""

    def __init__(self, timeout: float) -> None:
        """
        Args:
            timeout: the requested seconds; the session sets it to the granted ones.
        """
        self._listeners: list[SessionListener] = []
        self._confirmed_at = math.inf
        self.session_id = 0
        self.timeout = timeout
        self.state = SessionState.SUSPENDED  # changed by ``turn`` only

    @property
    def is_lost(self) -> bool:
        return self.state is SessionState.LOST

    @property
    def confirmed_at(self) -> float:
        """When the latest answered request was sent; infinity before there is one."""
        return self._confirmed_at

    @property
    def silent_seconds(self) -> float:
        """The time since the latest answered request was sent; 0 before there is one."""
        return max(0.0, now() - self._confirmed_at)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the session is over or may have ended at the store; exact even if the loop was held up (I13)."""
        return self.state is SessionState.LOST or self.silent_seconds >= self.timeout * DOUBT_SHARE

    @property
    def over(self) -> SessionExpiredError:
        return SessionExpiredError(f"metadata session {self.session_id:#x} is over")

    def check(self) -> None:
        """Raise SessionExpiredError if the session is LOST."""
        if self.state is SessionState.LOST:
            raise self.over

    def confirm(self, sent_at: float) -> None:
        """Note that the store answered a request sent at ``sent_at``.

        It may be called on one thread other than the loop's.
        """
        if self._confirmed_at == math.inf or sent_at > self._confirmed_at:
            self._confirmed_at = sent_at

    def turn(self, state: SessionState) -> None:
        """Tell the listeners of a state, if it is new."""
        if state is self.state:
            return
        self.state = SESSION_LIFECYCLE.move(self.state, state)
        for listener in list(self._listeners):
            run_callback("session listener", listener, state)

    def add_listener(self, listener: SessionListener) -> None:
        """Call ``listener`` with each new state from now on."""
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Undo one ``add_listener``. Nothing happens if it was not added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)


def run_callback(name: str, callback: Callable[[T], None], argument: T) -> None:
    """Call a user's function on the event loop. The loop's exception handler gets its exceptions."""
    try:
        callback(argument)
    except Exception as error:
        context = {"message": f"a metadata {name} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
