"""The fence of one ledger on one bookie: which adds are taken, and when a fencing read may be answered. No I/O.

    CLEAR --request--> WRITING --durable--> FENCED
                       WRITING --failed--> UNSURE --request--> WRITING

Two rules. From the first request on, no ordinary add is accepted, and no event leads back to CLEAR (I4). And no fencing
read gets an answer, positive or negative, before FENCED: a crash could otherwise lose a fence that a recovery relies
on, and with it the promise of "no such entry" (I6, I7). Requests that arrive in WRITING share its record.
"""

from __future__ import annotations

import enum
from typing import Any


class FenceState(enum.Enum):
    """The states of a fence. All but CLEAR refuse ordinary adds."""

    CLEAR = "clear"
    WRITING = "writing"
    UNSURE = "unsure"
    FENCED = "fenced"


class FenceEffect(enum.Enum):
    """The next step of the caller of ``request``."""

    ANSWER = "answer"  # the fence is durable: answer now
    WAIT = "wait"  # its record is being written: wait for the outcome
    WRITE = "write"  # write the record, then wait for the outcome


_ON_REQUEST = {
    FenceState.CLEAR: (FenceState.WRITING, FenceEffect.WRITE),
    FenceState.WRITING: (FenceState.WRITING, FenceEffect.WAIT),
    FenceState.UNSURE: (FenceState.WRITING, FenceEffect.WRITE),
    FenceState.FENCED: (FenceState.FENCED, FenceEffect.ANSWER),
}

_CLEAR = FenceState.CLEAR  # the members of an enumeration are found slowly, and each add needs this one

assert all(state is not FenceState.CLEAR for state, _ in _ON_REQUEST.values())  # I4


class Fence:
    """One ledger's fence. Waiters are opaque: ``request`` takes one, and it is returned with the outcome."""

    __slots__ = ("_waiters", "state")

    def __init__(self) -> None:
        self.state = FenceState.CLEAR
        self._waiters: list[Any] = []

    @property
    def is_clear(self) -> bool:
        """Whether ordinary adds are accepted."""
        return self.state is FenceState.CLEAR

    @property
    def is_durable(self) -> bool:
        """Whether a fencing read may be answered."""
        return self.state is FenceState.FENCED

    def permits_add(self, *, is_recovery: bool) -> bool:
        """Return whether an add may be stored: one of a recovery always, others only before any fence."""
        return is_recovery or self.state is _CLEAR  # I4

    def request(self, waiter: Any) -> FenceEffect:
        """Handle a fencing read. Unless the effect is ANSWER, keep ``waiter`` until the record's outcome is known."""
        self.state, effect = _ON_REQUEST[self.state]
        if effect is not FenceEffect.ANSWER:
            self._waiters.append(waiter)
        return effect

    def written(self) -> list[Any]:
        """Note that the record is durable; return the waiters, whose reads may be answered."""
        assert self.state is not FenceState.CLEAR, "a record was written on request"
        self.state = FenceState.FENCED
        return self._take()

    def failed(self) -> list[Any]:
        """Note that the record was not written; return the waiters, whose reads fail. The next request writes again."""
        assert self.state is not FenceState.CLEAR, "a record was written on request"
        if self.state is not FenceState.FENCED:
            self.state = FenceState.UNSURE  # I4: adds stay refused
        return self._take()

    def restore(self) -> None:
        """Set the fence that was found on disk at the start."""
        assert not self._waiters, "no read waits while a bookie starts"
        self.state = FenceState.FENCED

    def _take(self) -> list[Any]:
        waiters, self._waiters = self._waiters, []
        return waiters
