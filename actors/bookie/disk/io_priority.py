"""Journals go before readers: an add waits for its sync, and on a shared disk a sync waits for earlier requests.

A large read goes to the disk in one piece while no adds arrive. Beside adds it is cut into small pieces, and no piece
is started while a journal writes. A piece waits GIVE_WAY_SECONDS_MAX at most: adds slow reads down and never stop them.
"""

from __future__ import annotations

import sys
import threading
import time

READ_BYTES = 128 << 10  # size of one piece beside adds
GIVE_WAY_SECONDS_MAX = 0.002  # longest wait before each piece
URGENT_SECONDS = 0.05  # time after a journal's write during which more writes are expected


class IoPriority:
    """The priority on one disk. Journals take no lock unless a reader waits, because each add writes.

    Attributes:
        writing: the journals that write now. One adds itself before its write, and calls ``written`` after its sync.
    """

    def __init__(self) -> None:
        self.writing: set[object] = set()
        self._is_clear = threading.Condition(threading.Lock())
        self._readers = 0  # that wait until no journal writes, or are about to
        self._written_at = -URGENT_SECONDS

    def written(self, writer: object, now: float) -> None:
        """Note that a journal has ended a write and its sync, well or badly.

        Args:
            now: the time, of ``time.monotonic``.
        """
        self.writing.discard(writer)
        self._written_at = now
        if self._readers:
            with self._is_clear:
                if not self.writing:
                    self._is_clear.notify_all()

    def give_way(self) -> int:
        """Wait for journals that are writing; return how many bytes may then be read in one piece. Blocks."""
        with self._is_clear:
            self._readers += 1  # before the look at those who write: the last of them either is not seen, or notifies
            try:
                if self.writing:
                    self._is_clear.wait(GIVE_WAY_SECONDS_MAX)
                    return READ_BYTES
            finally:
                self._readers -= 1
        return READ_BYTES if time.monotonic() - self._written_at < URGENT_SECONDS else sys.maxsize
