"""How a broken promise is told: by the number of its invariant, then what was seen."""

from __future__ import annotations

from collections.abc import Collection

LIVENESS = "liveness"  # once faults stop, everything ends well within a bounded time
# What users are promised. The other invariants are about means; a run may leave them out to see the harm itself.
OUTCOMES = frozenset({"I1", "I2", "I3", "I5", "I12", LIVENESS})


class BrokenInvariantError(AssertionError):
    """A promise was broken; the message begins with its number."""


class Judge:
    """Raises for the invariants that a run watches: all of them, or only those named, and liveness in any case."""

    def __init__(self, watched: Collection[str] | None = None) -> None:
        self._watched = None if watched is None else frozenset({*watched, LIVENESS})

    def require(self, holds: bool, invariant: str, text: str) -> None:
        """Raise BrokenInvariantError unless the promise holds, or is not watched."""
        if not holds and (self._watched is None or invariant in self._watched):
            raise BrokenInvariantError(f"{invariant} {text}")

    def hear(self, alarms: list[tuple[str, str]]) -> None:
        """Take invariants that were seen broken, each with what was seen."""
        while alarms:
            self.require(False, *alarms.pop(0))
