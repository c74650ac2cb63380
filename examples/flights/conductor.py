"""The actor to which publishers and consumers report their progress; the demonstration's bars show its counts."""

from __future__ import annotations

import asyncio
from collections import Counter


class Conductor:
    """A Ray actor that counts rows by name. Only ``wait_for_fault`` waits."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._published: dict[int, int] | None = None
        self._fault_happened = asyncio.Event()

    def report(self, name: str, rows: int) -> dict[int, int] | None:
        """Add ``rows`` to the count of ``name``.

        Returns:
            The number of rows published to each partition once publishing has ended, None before.
        """
        self._rows[name] += rows
        return self._published

    def rows(self) -> dict[str, int]:
        """Return the rows counted by name."""
        return dict(self._rows)

    def note_fault(self) -> None:
        """Let the publishers go on that wait for the fault."""
        self._fault_happened.set()

    async def wait_for_fault(self) -> None:
        """Return once the fault has happened."""
        await self._fault_happened.wait()

    def finish_publishing(self, rows_by_partition: dict[int, int]) -> None:
        """Set the number of rows that consumers have to expect."""
        self._published = rows_by_partition
