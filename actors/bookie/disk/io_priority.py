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
    """The priority on one disk. A journal writes and syncs within ``with io_priority:``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_clear = threading.Condition(self._lock)
        self._writers = 0
        self._readers = 0  # that wait until no journal writes
        self._urgent_until = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._writers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._writers -= 1
            self._urgent_until = time.monotonic() + URGENT_SECONDS
            if self._readers and not self._writers:
                self._is_clear.notify_all()

    def give_way(self) -> int:
        """Wait for journals that are writing; return how many bytes may then be read in one piece. Blocks."""
        with self._lock:
            if self._writers:
                self._readers += 1
                self._is_clear.wait(GIVE_WAY_SECONDS_MAX)
                self._readers -= 1
                return READ_BYTES
            return READ_BYTES if time.monotonic() < self._urgent_until else sys.maxsize
