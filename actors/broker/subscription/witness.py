"""Evidence by bookies of a topic's ownership while the metadata session is in doubt (pure).

Another broker that takes the topic over fences its last ledger before anything else. So a broker that is told by an
ack quorum of that ledger's bookies that it is not fenced owned the topic when it asked. It may rely on that for
LEASE_SECONDS from then on, and an owner whose predecessor did not close the topic delivers nothing that must not be
held twice for HOLD_SECONDS after the fence: then the predecessor has stopped, or was told (I16). Publishing needs none
of this: the fence itself decides (I13).
"""

from __future__ import annotations

import math
from collections.abc import Callable

LEASE_SECONDS = 1.0  # from the time of a question that an ack quorum of bookies answered
PROBE_SECONDS = 0.25  # between two questions
HOLD_SECONDS = 1.5  # after the fence of a topic that its predecessor did not close
assert 2 * PROBE_SECONDS < LEASE_SECONDS < HOLD_SECONDS, (
    "a question comes before the end of a lease, that before the hold"
)


def _never_in_doubt() -> bool:
    return False


class Witness:
    """The ownership of one topic, by the clock of its broker."""

    def __init__(
        self, is_in_doubt: Callable[[], bool] = _never_in_doubt, now: Callable[[], float] = lambda: 0.0
    ) -> None:
        """
        Args:
            is_in_doubt: whether another broker may own the topic as far as the metadata store has told.
            now: seconds of a clock that also runs while the machine sleeps.
        """
        self._is_in_doubt = is_in_doubt
        self._now = now
        self._held_until = -math.inf
        self._asked_at = -math.inf  # when the latest question that bookies confirmed was asked; only grows
        self._doubted_at = math.inf  # when the doubt was first looked at; infinity while there is none

    def now(self) -> float:
        """Return the seconds of the witness' clock."""
        return self._now()

    def fenced(self, at: float) -> None:
        """Note that the ledgers of a predecessor, which may not know, were fenced at that time."""
        self._held_until = at + HOLD_SECONDS

    def confirm(self, asked_at: float) -> None:
        """Note that an ack quorum of bookies confirmed the ownership of the time when they were asked."""
        self._asked_at = max(self._asked_at, asked_at)

    def holds(self) -> bool:
        """Return whether no other broker delivers what must not be held twice (I16)."""
        now = self._now()
        if now < self._held_until:
            return False
        if not self._is_in_doubt():
            self._asked_at, self._doubted_at = now, math.inf  # by the store's word
            return True
        return now - self._asked_at < LEASE_SECONDS

    def is_over(self) -> bool:
        """Return whether what must not be held twice is to be taken back from the consumers (I16).

        The doubt comes before another broker can own the topic, so the first question after it gets its time.
        """
        now, is_held = self._now(), self.holds()
        if self._is_in_doubt():
            self._doubted_at = min(self._doubted_at, now)
        return not is_held and now - max(self._asked_at, self._doubted_at) >= LEASE_SECONDS
