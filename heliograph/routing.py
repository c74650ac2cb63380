"""Which partition a message goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.protocol.hashing import java_string_hash, murmur3_hash
from heliograph.types import Hashing

_HASHES: dict[Hashing, Callable[[str], int]] = {"java": java_string_hash, "murmur3": murmur3_hash}


class Router:
    """Chooses partitions: by the hash of the key, and for messages without one in turns, one batch a turn.

    Args:
        partitions: how many there are, at least 1.
        hashing: ``java`` is what Pulsar's Java clients and WebSocket proxy do, so equal keys meet.
        first: where the turns start; different producers start at different partitions to spread the load.
    """

    def __init__(self, partitions: int, hashing: Hashing = "java", first: int = 0) -> None:
        assert partitions >= 1, "there is always somewhere to send to"
        self.partitions = partitions
        self._hash = _HASHES[hashing]
        self.current = first % partitions

    def of_key(self, key: str) -> int:
        """The partition of every message with this key."""
        return self._hash(key) % self.partitions if self.partitions > 1 else 0

    def advance(self) -> int:
        """Takes the next turn and returns its partition."""
        self.current = (self.current + 1) % self.partitions
        return self.current

    def split(self, keys: Sequence[str | None]) -> dict[int, list[int]]:
        """Positions of ``keys`` by partition, in their order; those without a key all take the next turn."""
        if self.partitions == 1:
            return {0: list(range(len(keys)))}
        turn = self.advance() if None in keys else self.current
        positions: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            partition = turn if key is None else self._hash(key) % self.partitions
            positions.setdefault(partition, []).append(position)
        return positions
