"""The choice of a partition for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.client.types import Hashing
from heliograph.protocol.hashing import java_string_hash, murmur3_hash

_HASHES: dict[Hashing, Callable[[str], int]] = {"java": java_string_hash, "murmur3": murmur3_hash}


class Router:
    """Chooses partitions: by the hash of the key, or round-robin by batches for messages without a key.

    Args:
        partitions: Their number, at least 1.
        hashing: ``java`` is the hash of Pulsar's Java clients and WebSocket proxy; equal keys meet in one partition.
        first: Partition at which round-robin starts; producers start at different ones to spread the load.
    """

    def __init__(self, partitions: int, hashing: Hashing = "java", first: int = 0) -> None:
        assert partitions >= 1, "a topic has at least one place to send to"
        self.partitions = partitions
        self._hash = _HASHES[hashing]
        self.current = first % partitions

    def of_key(self, key: str) -> int:
        """Return the partition of every message with this key."""
        return self._hash(key) % self.partitions if self.partitions > 1 else 0

    def advance(self) -> int:
        """Move on to the next partition in turn and return it."""
        self.current = (self.current + 1) % self.partitions
        return self.current

    def split(self, keys: Sequence[str | None]) -> dict[int, list[int]]:
        """Return the positions of ``keys`` by partition, in order; all without a key go to one partition, the next."""
        if self.partitions == 1:
            return {0: list(range(len(keys)))}
        turn = self.advance() if None in keys else self.current
        positions: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            partition = turn if key is None else self._hash(key) % self.partitions
            positions.setdefault(partition, []).append(position)
        return positions
