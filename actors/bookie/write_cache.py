"""Entries that are not in an entry log yet, in two halves: one takes adds while the other is flushed.

Used on the event loop only, but for the flush, which reads the flushing half: that half does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

ENTRY_OVERHEAD_BYTES = 200  # of Python around each cached entry, about
_FLUSH_SHARE = 0.375  # of the whole, at which a flush should start
_CROWDED_SHARE = 0.9  # of the whole, at which sockets should not be read


class CacheHalf:
    """Entries by ledger and entry id; ``size_bytes`` counts the overhead in.

    ``is_journaled``: each entry is in a journal, or on its way into one. Not so when a journal refused some.
    """

    __slots__ = ("entries", "is_journaled", "ledgers", "size_bytes")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.is_journaled = True
        self.entries = 0
        self.size_bytes = 0

    def put(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Keep an entry, in place of an earlier copy of it."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = {}
        self.size_bytes += len(data) + ENTRY_OVERHEAD_BYTES
        old = ledger.get(entry_id)
        if old is None:
            self.entries += 1
        else:
            self.size_bytes -= len(old) + ENTRY_OVERHEAD_BYTES
        ledger[entry_id] = data

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, or None."""
        ledger = self.ledgers.get(ledger_id)
        return None if ledger is None else ledger.get(entry_id)

    def drop(self, ledger_id: int) -> None:
        """Let go of a ledger's entries."""
        for data in self.ledgers.pop(ledger_id, {}).values():
            self.entries -= 1
            self.size_bytes -= len(data) + ENTRY_OVERHEAD_BYTES

    def sorted(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """These ledgers ascending, each with its entries ascending."""
        for ledger_id in sorted(ledger_ids):
            entries = self.ledgers[ledger_id]
            yield ledger_id, [(entry_id, entries[entry_id]) for entry_id in sorted(entries)]


class WriteCache:
    """Both halves together hold at most ``bytes_max`` (I15)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._flush_bytes = bytes_max * _FLUSH_SHARE
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None

    @property
    def size_bytes(self) -> int:
        """Of both halves."""
        return self.active.size_bytes + (self.flushing.size_bytes if self.flushing is not None else 0)

    @property
    def entries(self) -> int:
        """Of both halves."""
        return self.active.entries + (self.flushing.entries if self.flushing is not None else 0)

    @property
    def wants_flush(self) -> bool:
        """Whether the active half is large enough to flush, and the other one is free."""
        return self.flushing is None and self.is_half_full

    @property
    def is_half_full(self) -> bool:
        """Whether the active half is large enough to flush."""
        return self.active.size_bytes > self._flush_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether little room is left: stop reading adds from sockets."""
        return self.size_bytes > self._bytes_max * _CROWDED_SHARE

    def has_room(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes fits."""
        return self.size_bytes + size + ENTRY_OVERHEAD_BYTES <= self._bytes_max

    def put(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        """Keep an entry for which there is room."""
        self.active.put(ledger_id, entry_id, data)

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry, or None."""
        data = self.active.get(ledger_id, entry_id)
        if data is None and self.flushing is not None:
            data = self.flushing.get(ledger_id, entry_id)
        return data

    @property
    def is_journaled(self) -> bool:
        """Whether each entry is in a journal, or on its way into one."""
        return self.active.is_journaled and (self.flushing is None or self.flushing.is_journaled)

    def note_refusal(self) -> None:
        """A journal refused entries: until they are flushed a crash would lose them. In which half they are is open."""
        for half in (self.active, self.flushing):
            if half is not None:
                half.is_journaled = False

    def entry_ids(self, ledger_id: int) -> set[int]:
        """Ids of the ledger's cached entries."""
        found = set(self.active.ledgers.get(ledger_id, ()))
        if self.flushing is not None:
            found.update(self.flushing.ledgers.get(ledger_id, ()))
        return found

    def swap(self) -> CacheHalf:
        """Start a flush: the active half becomes the flushing one, which is returned."""
        assert self.flushing is None, "a half that is not on disk is never swapped in again"
        self.flushing = self.active
        self.active = CacheHalf()
        return self.flushing

    def flushed(self) -> None:
        """The flushing half is on disk and indexed: let it go."""
        assert self.flushing is not None, "there was a swap before"
        self.flushing = None
