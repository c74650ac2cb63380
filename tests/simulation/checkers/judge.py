"""Reports of broken invariants: the number of the invariant, then what was seen."""

from __future__ import annotations

from collections.abc import Collection

LIVENESS = "liveness"  # once faults stop, everything recovers within a bounded time
DELAY = "delay"  # a Shared or Key_Shared subscription delivers no message before the time that its producer asked for
READING = (
    "reading"  # a reader gets each entry that is confirmed, in order, also over connections, if it was not trimmed
)
COMPACTION = "compaction"  # a reader of the compacted form has the newest value of each key, and no deleted key
DELETION = "deletion"  # what is being deleted is refused, and nothing of it is left or comes back
COUNTS = "counts"  # a backlog that is told in messages is the number of its messages
CALLS = "calls"  # each call of a handle has the outcome that its docstring promises, and no other
# Invariants that users can observe. A run may watch these only, to see the harm itself.
OUTCOMES = frozenset({"I1", "I2", "I3", "I5", "I12", LIVENESS})


class BrokenInvariantError(AssertionError):
    """A broken invariant. The message begins with its number."""


class Judge:
    """Raises for the invariants that a run watches: all of them, or those named and liveness."""

    def __init__(self, watched: Collection[str] | None = None) -> None:
        self._watched = None if watched is None else frozenset({*watched, LIVENESS})

    def require(self, holds: bool, invariant: str, text: str) -> None:
        """Raise BrokenInvariantError if the invariant is watched and does not hold."""
        if not holds and (self._watched is None or invariant in self._watched):
            raise BrokenInvariantError(f"{invariant} {text}")

    def hear(self, alarms: list[tuple[str, str]]) -> None:
        """Take invariants that a part of the simulation saw broken, with what it saw."""
        while alarms:
            self.require(False, *alarms.pop(0))
