"""Opening the partitions of a topic together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Partition(Protocol):
    """A producer or a consumer of one partition."""

    async def open(self) -> None:
        """Register with the partition's owner."""

    async def close(self) -> None:
        """Leave it, whether or not it was opened."""


async def open_all(parts: Sequence[Partition]) -> None:
    """Open all of them, or none: where one fails, or the caller is cancelled, the others are closed again.

    Raises:
        the first failure.
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
