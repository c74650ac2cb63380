"""Memory that whole blocks are written from and read into: aligned, as going past the page cache demands.

It is shared anonymous memory, which a fork in the middle of a read cannot take away from under the disk.
"""

from __future__ import annotations

import mmap

BLOCK_BYTES = 4096


class BlockBuffer:
    """A growing buffer on a block boundary. ``memory`` takes slices; a view given out shows old memory after growth."""

    def __init__(self, capacity: int) -> None:
        self.memory = mmap.mmap(-1, up_to_block(capacity))

    def reserve(self, size: int, kept: int = 0) -> None:
        """Have room for ``size`` bytes, keeping the first ``kept``."""
        if size <= len(self.memory):
            return
        old, self.memory = self.memory, mmap.mmap(-1, up_to_block(max(size, 2 * len(self.memory))))
        self.memory[:kept] = old[:kept]  # the old memory goes with its last view, which a failed write may keep a while

    def view(self, size: int) -> memoryview:
        """The first ``size`` bytes, to be written and let go of."""
        return memoryview(self.memory)[:size]


def own_memory(size: int) -> memoryview:
    """New memory on a block boundary, for one use."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


def up_to_block(size: int) -> int:
    """``size``, made up to whole blocks."""
    return size + -size % BLOCK_BYTES
