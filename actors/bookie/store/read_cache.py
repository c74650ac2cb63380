"""The cache of entries that were read from entry logs, read-ahead included. Used on the event loop only."""

from __future__ import annotations

from collections import OrderedDict

ENTRY_OVERHEAD_BYTES = 210  # memory of the Python objects around a payload: its bytes, its key, its place


class ReadCache:
    """Evicts the least recently used entries; holds at most ``bytes_max`` bytes with the overhead (I15)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return the entry, or None if it is not cached."""
        key = (ledger_id, entry_id)
        data = self._entries.get(key)
        if data is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return data

    def put(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Keep an entry, unless it is larger than the whole cache."""
        size = len(data) + ENTRY_OVERHEAD_BYTES
        key = (ledger_id, entry_id)
        if size > self._bytes_max or key in self._entries:
            return
        self._entries[key] = data
        self.size_bytes += size
        while self.size_bytes > self._bytes_max:
            _, old = self._entries.popitem(last=False)
            self.size_bytes -= len(old) + ENTRY_OVERHEAD_BYTES
