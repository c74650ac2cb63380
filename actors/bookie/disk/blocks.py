"""Memory for whole blocks, aligned as reads and writes past the page cache require.

It is shared anonymous memory, so a fork during a read does not replace the pages that the read fills. A buffer that has
grown large lies in huge pages instead, which no fork copies: the kernel cuts a write of 4 MiB from small pages into
several requests, and looks each page up.
"""

from __future__ import annotations

import mmap

BLOCK_BYTES = 4096
MAPPED_BYTES_LEAST = 64 << 10
_HUGE_PAGE_BYTES = 2 << 20


class BlockBuffer:
    """A growing buffer on a block boundary. A view of ``memory`` shows the old memory after the buffer has grown.

    Attributes:
        whole: a view of all of ``memory``.
    """

    def __init__(self, capacity: int) -> None:
        self.memory = mmap.mmap(-1, up_to_block(capacity))
        self.whole = memoryview(self.memory)

    def reserve(self, size: int, kept: int = 0) -> None:
        """Grow to ``size`` bytes if needed; the first ``kept`` bytes stay."""
        if size <= len(self.memory):
            return
        old, self.memory = self.memory, _large_memory(up_to_block(max(size, 2 * len(self.memory))))
        self.whole = memoryview(self.memory)
        self.memory[:kept] = memoryview(old)[:kept]  # the old memory is freed with its last view

    def view(self, size: int) -> memoryview:
        """Return the first ``size`` bytes. The caller drops the view after writing it."""
        return self.whole[:size]


def own_memory(size: int) -> memoryview:
    """Return new memory on a block boundary, for one use."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


def new_memory(size: int) -> memoryview:
    """Return new memory for one use; it is on a block boundary if it is large. To map a small one takes longer than
    to read into it."""
    return own_memory(size) if size >= MAPPED_BYTES_LEAST else memoryview(bytearray(size))


def _large_memory(size: int) -> mmap.mmap:
    """Return new memory on a block boundary, in huge pages if it is large enough and the kernel has them."""
    if size >= _HUGE_PAGE_BYTES:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(mmap.MADV_DONTFORK)
            return memory
        except OSError:  # a kernel without them
            memory.close()
    return mmap.mmap(-1, size)


def up_to_block(size: int) -> int:
    """Return ``size`` rounded up to whole blocks."""
    return size + -size % BLOCK_BYTES
