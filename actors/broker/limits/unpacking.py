"""The bytes of payloads and definitions that a process unpacks for its brokers, all together (I15).

Peeks, compactions, readers of what compaction left and checks of schemas share one budget. A few kilobytes of an entry
may become 64 MiB: LZ4 and Snappy, as clients use them, cannot be unpacked in pieces. So an entry is unpacked as
a whole, and its messages are taken from it one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from heliograph.base.guard.shares import HeldBytes, UnpackBudget
from heliograph.protocol.compression import INLINE_BYTES_MAX, UNCOMPRESSED_BYTES_MAX
from heliograph.protocol.entry import UNPACK_COPIES, unpacked_bytes

UNPACKED_BYTES_MAX = UNCOMPRESSED_BYTES_MAX * UNPACK_COPIES + (64 << 20)  # the largest entry, and others beside it
SMALL_BYTES = INLINE_BYTES_MAX * UNPACK_COPIES  # of an entry that needs nothing of the budget: each thread has one

T = TypeVar("T")
R = TypeVar("R")

budget = UnpackBudget(UNPACKED_BYTES_MAX)


async def unpacked(
    tenant: str, items: Sequence[T], section_of: Callable[[T], bytes | memoryview], work: Callable[[T], R]
) -> list[R]:
    """Do some work with each of some entries on a thread, in order, and return the results.

    Args:
        tenant: whose entries they are: one tenant has a quarter of the budget, or one large entry at a time.
        section_of: returns the entry of an item.
        work: unpacks the entry, and keeps nothing of it but the result.

    Raises:
        Exception: what ``work`` raises.
    """
    done: list[R] = []

    def run(held: HeldBytes | None, held_bytes: int) -> int:
        """Work until an entry needs more bytes than are held. Return how many it needs, 0 at the end."""
        try:
            for item in items[len(done) :]:
                needed = unpacked_bytes(section_of(item))
                if needed > held_bytes:
                    return needed
                done.append(work(item))
            return 0
        finally:
            if held is not None:
                held.release()

    needed = await asyncio.to_thread(run, None, SMALL_BYTES)
    while needed:
        needed = await asyncio.to_thread(run, await budget.take(tenant, needed), needed)
    return done
