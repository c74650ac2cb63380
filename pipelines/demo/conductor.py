"""Who knows how far everybody is: publishers and consumers report here, the demonstration's bars are drawn from it."""

from __future__ import annotations

from collections import Counter


class Conductor:
    """Runs as a Ray actor. Every method is quick."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._published: dict[int, int] | None = None

    def report(self, name: str, rows: int) -> dict[int, int] | None:
        """Count ``rows`` more for ``name``.

        Returns:
            Rows published to each partition once publishing is over, None before.
        """
        self._rows[name] += rows
        return self._published

    def rows(self) -> dict[str, int]:
        """How far everybody is."""
        return dict(self._rows)

    def finish_publishing(self, rows_by_partition: dict[int, int]) -> None:
        """Tell consumers where the end is."""
        self._published = rows_by_partition
