"""Journals go before readers: an add waits for its sync, and on a shared disk a sync waits for what was begun before.

A large read goes to the disk in one piece while no add comes. Beside adds it goes in small ones, none of which is begun
while a journal writes; for want of a pause it goes on after GIVE_WAY_SECONDS_MAX: adds slow reads down and stop none.
"""

from __future__ import annotations

import sys
import threading
import time

READ_BYTES = 128 << 10  # of one piece beside adds
GIVE_WAY_SECONDS_MAX = 0.002  # before each piece
URGENT_SECONDS = 0.05  # after a journal's write more of them are expected


class Precedence:
    """Of one disk. A journal writes and syncs within ``with precedence:``, on its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers = 0
        self._is_clear = threading.Event()
        self._is_clear.set()
        self._urgent_until = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._writers += 1
            self._is_clear.clear()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._writers -= 1
            self._urgent_until = time.monotonic() + URGENT_SECONDS
            if not self._writers:
                self._is_clear.set()

    def give_way(self) -> int:
        """Wait for journals that write, and return how many bytes may be read then in one piece. Blocks."""
        if self._is_clear.is_set() and time.monotonic() >= self._urgent_until:
            return sys.maxsize
        self._is_clear.wait(GIVE_WAY_SECONDS_MAX)
        return READ_BYTES
