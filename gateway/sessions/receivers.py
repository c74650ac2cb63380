"""Bound of the messages that all consumers and readers together request in advance (I15)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from heliograph.gateway.config import RECEIVER_SHARE_LEAST, RECEIVERS_BYTES_MAX

_SHARE_OF_REST = 16  # one may have this part of the room that is left


class ReceiverRoom:
    """The room for messages that are requested ahead.

    Args:
        one_max: bytes of one consumer or reader while there are few.
    """

    def __init__(self, one_max: int) -> None:
        self.left = RECEIVERS_BYTES_MAX  # bytes; what each one has beyond ``RECEIVER_SHARE_LEAST`` is taken from it
        self._one_max = one_max

    def take(self) -> int:
        """Return the bytes that another consumer or reader may request ahead; ``give_back`` them when it is closed."""
        size = min(self._one_max, max(RECEIVER_SHARE_LEAST, self.left // _SHARE_OF_REST))
        self.left -= max(0, size - RECEIVER_SHARE_LEAST)
        assert self.left >= 0, "a share is a part of the rest"  # I15
        return size

    def give_back(self, size: int) -> None:
        """Count the bytes of one no more."""
        self.left += max(0, size - RECEIVER_SHARE_LEAST)

    @contextlib.contextmanager
    def taken(self) -> Iterator[int]:
        """Have the bytes of one for the duration of a session."""
        size = self.take()
        try:
            yield size
        finally:
            self.give_back(size)
