"""The bytes of copies under way, by how long bookies take to store them, so that repair yields to clients. No I/O.

A copy waits for the same event loop, journal and disk of a bookie as the adds of clients, and what is under way at once
waits for each other. So the window grows while copies are stored quickly, and is halved while they are not, whether the
cause is the repair itself or the clients. It never shrinks below a bound: a repair always goes on.
"""

from __future__ import annotations

from heliograph.actors.ledger.limits import RepairLimits


class RepairWindow:
    """The window of all repairs of one process; the next one begins as the last one ended."""

    def __init__(self, limits: RepairLimits) -> None:
        self._limits = limits
        self._least = min(limits.in_flight_bytes_least, limits.in_flight_bytes_max)
        self.size = self._least  # bytes; in_flight_bytes_least <= size <= in_flight_bytes_max (I15)
        self._stored_bytes = 0  # since the size was last adjusted
        self._stored = 0
        self._waited_ms = 0

    def note_stored(self, size: int, waited_ms: int) -> None:
        """Take into account that a bookie has stored a copy of ``size`` bytes, ``waited_ms`` after it was sent.

        The window is adjusted once for each time that it was filled, by the mean of these times.
        """
        assert waited_ms >= 0, "time does not go back"
        self._stored_bytes += size
        self._stored += 1
        self._waited_ms += waited_ms
        if self._stored_bytes >= self.size // 2 or self._stored >= max(1, self._limits.in_flight_entries_max // 2):
            is_slow = self._waited_ms > self._stored * self._limits.copy_ms
            self._adjust(self.size // 2 if is_slow else self.size + max(1, self._least // 4))

    def note_refused(self) -> None:
        """Take into account that a bookie has not stored a copy: start again with the smallest window."""
        self._adjust(self._least)

    def _adjust(self, size: int) -> None:
        self.size = min(self._limits.in_flight_bytes_max, max(self._least, size))
        self._stored_bytes = self._stored = self._waited_ms = 0
