"""Opening all partitions of a topic at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Partition(Protocol):
    """A producer or a consumer of one partition."""

    async def open(self) -> None:
        """Register with the broker that owns the partition."""

    async def close(self) -> None:
        """Leave the partition; nothing happens if it was never opened."""


async def open_all(parts: Sequence[Partition]) -> None:
    """Open all of ``parts``, or none: if one fails, or the caller is cancelled, all are closed again.

    Raises:
        HeliographError: The first failure.
    """
    try:
        results = await asyncio.gather(*(part.open() for part in parts), return_exceptions=True)
    except asyncio.CancelledError:
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        raise
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        raise failures[0]
