"""The fence of one ledger on one bookie: who may write, and when a fencing read may be answered. No I/O.

    CLEAR --request--> WRITING --durable--> FENCED
                       WRITING --failed--> UNSURE --request--> WRITING

Two rules: from the first request on, no ordinary add is accepted, and nothing leads back to CLEAR (I4). And no fencing
read gets any answer, positive or negative, before FENCED: else a crash could forget a fence that a recoverer counted
on, and with it the promise in "no such entry" (I6, I7). Requests that meet WRITING share its record.
"""

from __future__ import annotations

import enum
from typing import Any


class FenceState(enum.Enum):
    """All but CLEAR refuse ordinary adds."""

    CLEAR = "clear"
    WRITING = "writing"
    UNSURE = "unsure"
    FENCED = "fenced"


class FenceEffect(enum.Enum):
    """What the caller of ``request`` must do."""

    ANSWER = "answer"  # the fence is durable: answer now
    WAIT = "wait"  # its record is on the way: wait to be told
    WRITE = "write"  # write the record, then wait to be told


_ON_REQUEST = {
    FenceState.CLEAR: (FenceState.WRITING, FenceEffect.WRITE),
    FenceState.WRITING: (FenceState.WRITING, FenceEffect.WAIT),
    FenceState.UNSURE: (FenceState.WRITING, FenceEffect.WRITE),
    FenceState.FENCED: (FenceState.FENCED, FenceEffect.ANSWER),
}

assert all(state is not FenceState.CLEAR for state, _ in _ON_REQUEST.values())  # I4


class Fence:
    """Waiters are opaque: whoever asks passes one and gets it back when its wait is over."""

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
        """Whether an add may be stored: recovery's always, others before any fence."""
        return is_recovery or self.state is FenceState.CLEAR  # I4

    def request(self, waiter: Any) -> FenceEffect:
        """A fencing read came. Unless the effect is ANSWER, ``waiter`` is kept until the record's outcome is known."""
        self.state, effect = _ON_REQUEST[self.state]
        if effect is not FenceEffect.ANSWER:
            self._waiters.append(waiter)
        return effect

    def written(self) -> list[Any]:
        """The record is durable: returns the waiters, who may be answered."""
        assert self.state is not FenceState.CLEAR, "a record was written on request"
        self.state = FenceState.FENCED
        return self._take()

    def failed(self) -> list[Any]:
        """The record was not written: returns the waiters, whose reads fail. The next request writes again."""
        assert self.state is not FenceState.CLEAR, "a record was written on request"
        if self.state is not FenceState.FENCED:
            self.state = FenceState.UNSURE  # I4: adds stay refused
        return self._take()

    def restore(self) -> None:
        """The fence was found on disk."""
        assert not self._waiters, "nobody waits while a bookie starts"
        self.state = FenceState.FENCED

    def _take(self) -> list[Any]:
        waiters, self._waiters = self._waiters, []
        return waiters
