"""The newest entries of all topics of a broker, so that consumers that keep up never cause a read from a bookie.

One cache serves the whole broker and is bounded in bytes (I15). The entry that was published first leaves first:
consumers that keep up read it at once, and consumers that do not are served by read-ahead from the bookies.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from heliograph.actors.broker.managed_ledger.read_budget import ReadBudget
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import ENTRY_OVERHEAD_BYTES, TopicEntry

UNREAD_BYTES_MAX = 512 << 10  # of a topic that nobody reads: its first reader may come right after a few entries # I15

_NOTHING: deque[tuple[Position, int]] = deque(maxlen=0)  # holds nothing ever: a topic without entries has no deque


class TailCache:
    """Entries by position.

    Args:
        bytes_max: the bound of payloads and their overhead together.

    Attributes:
        read_budget: of the entries that are not here and that subscriptions read ahead.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.read_budget = ReadBudget()
        self._entries: OrderedDict[Position, TopicEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, position: Position, entry: TopicEntry) -> None:
        """Add the newest entry of a ledger. The oldest entries of any ledger leave if there is no room."""
        assert position not in self._entries, "an entry is published once"
        self._entries[position] = entry
        self.bytes += len(entry.payload) + ENTRY_OVERHEAD_BYTES
        if self.bytes > self.bytes_max:
            self._evict()

    def drop(self, position: Position) -> bool:
        """Remove an entry. Return whether it was in the cache."""
        entry = self._entries.pop(position, None)
        if entry is not None:
            self.bytes -= len(entry.payload) + ENTRY_OVERHEAD_BYTES
        return entry is not None

    def limit(self, bytes_max: int) -> None:
        """Change the bound. Entries leave at once if it is lower."""
        self.bytes_max = bytes_max
        self._evict()

    def _evict(self) -> None:
        while self.bytes > self.bytes_max:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= len(oldest.payload) + ENTRY_OVERHEAD_BYTES
        assert self.bytes >= 0, "every entry leaves with the bytes that it came with"  # I15

    def get(self, position: Position) -> TopicEntry | None:
        """Return an entry, or None when it is not in the cache."""
        entry = self._entries.get(position)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
        return entry

    def statistics(self) -> dict[str, int]:
        return {
            "entries": len(self._entries),
            "bytes": self.bytes,
            "bytes_max": self.bytes_max,
            "hits": self.hits,
            "misses": self.misses,
        }


class TopicTail:
    """The newest entries of one topic. While nobody reads it, the cache keeps few of them, so that they do not take the
    room of topics that are read."""

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._unread: deque[tuple[Position, int]] = _NOTHING
        self._unread_bytes = 0  # 0 <= unread_bytes

    def put(self, position: Position, entry: TopicEntry, *, is_read: bool) -> None:
        """Add the newest entry of the topic.

        Args:
            is_read: whether the topic has subscriptions.
        """
        self._cache.put(position, entry)
        if is_read:
            if self._unread:
                self._unread = _NOTHING
                self._unread_bytes = 0
            return
        size = len(entry.payload) + ENTRY_OVERHEAD_BYTES
        if self._unread is _NOTHING:
            self._unread = deque()
        self._unread.append((position, size))
        self._unread_bytes += size
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self._drop_unread()

    def _drop_unread(self) -> None:
        """Drop the older half: many at once cost less than one with each new entry."""
        while self._unread_bytes > UNREAD_BYTES_MAX // 2 and len(self._unread) > 1:
            oldest, size = self._unread.popleft()
            self._unread_bytes -= size
            self._cache.drop(oldest)
