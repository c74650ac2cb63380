"""The write cache: entries that are not in an entry log yet, in two halves. One takes adds while the other is flushed.

Used on the event loop only, except for the flush, which reads the flushing half on a thread; that half does not change
meanwhile.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from heliograph.actors.bookie.journal.journal import JournalNote

ENTRY_OVERHEAD_BYTES = 110  # memory of the Python objects around a payload: its bytes, its number, its place
_FLUSH_SHARE = 0.375  # of the cache, at which a flush should start
_COPIES_SHARE = 2 * _FLUSH_SHARE  # of the cache, at which sockets that bring copies should not be read
_CROWDED_SHARE = 0.9  # of the cache, at which sockets should not be read


class CacheHalf:
    """Entries by ledger and entry id. ``size_bytes`` includes the overhead.

    Attributes:
        is_journaled: each entry is in a journal or queued for one. False after a journal has refused entries.
        places: of large entries, by ledger and entry id: where a journal holds them durably.
    """

    __slots__ = ("entries", "is_journaled", "ledgers", "places", "size_bytes")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, bytes | memoryview]] = {}
        self.places: dict[tuple[int, int], JournalNote] = {}
        self.is_journaled = True
        self.entries = 0
        self.size_bytes = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | memoryview | None:
        """Return the entry, or None if it is not cached."""
        ledger = self.ledgers.get(ledger_id)
        return None if ledger is None else ledger.get(entry_id)

    def drop(self, ledger_id: int) -> int:
        """Remove a ledger's entries; return by how many bytes the half shrank."""
        entries = self.ledgers.pop(ledger_id, {})
        shrunk = sum([len(data) + ENTRY_OVERHEAD_BYTES for data in entries.values()])
        self.entries -= len(entries)
        self.size_bytes -= shrunk
        return shrunk

    def sorted(
        self, ledger_ids: Iterable[int], left_out: Container[tuple[int, int]] = ()
    ) -> Iterator[tuple[int, list[tuple[int, bytes | memoryview]]]]:
        """Yield these ledgers in ascending order, each with its entries in ascending order, except for ``left_out``."""
        for ledger_id in sorted(ledger_ids):
            entries = self.ledgers[ledger_id]
            if left_out:
                found = [(n, entries[n]) for n in sorted(entries) if (ledger_id, n) not in left_out]
            else:
                found = [(entry_id, entries[entry_id]) for entry_id in sorted(entries)]
            if found:
                yield ledger_id, found

    def place_of(self, ledger_id: int, entry_id: int) -> JournalNote | None:
        """Return the place of this copy of an entry in a journal; None: unknown, as after a later copy."""
        note = self.places.get((ledger_id, entry_id))
        return note if note is not None and note.payload is self.get(ledger_id, entry_id) else None

    def bytes_of(self, ledger_ids: Iterable[int]) -> int:
        return sum([len(data) for ledger_id in ledger_ids for data in self.ledgers[ledger_id].values()])


class WriteCache:
    """Two halves that together hold at most ``bytes_max`` bytes (I15).

    Attributes:
        room_bytes: size of the largest entry that fits; below 0, none does.
        calm_room_bytes: with so much room, no flush is needed and nothing waits for one.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._flush_bytes = bytes_max * _FLUSH_SHARE
        self._crowded_bytes = bytes_max * _CROWDED_SHARE
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None
        self.room_bytes = bytes_max - ENTRY_OVERHEAD_BYTES
        self.calm_room_bytes = self.room_bytes - self._flush_bytes

    @property
    def size_bytes(self) -> int:
        return self._bytes_max - ENTRY_OVERHEAD_BYTES - self.room_bytes

    @property
    def entries(self) -> int:
        return self.active.entries + (self.flushing.entries if self.flushing is not None else 0)

    @property
    def needs_flush(self) -> bool:
        """Whether the active half is large enough to flush and no flush is running."""
        return self.flushing is None and self.active.size_bytes > self._flush_bytes

    @property
    def is_half_full(self) -> bool:
        return self.active.size_bytes > self._flush_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether so little room is left that adds should not be read from sockets."""
        return self.size_bytes > self._crowded_bytes

    @property
    def is_left_to_clients(self) -> bool:
        """Whether the room that is left is for the adds of clients: copies of repair wait for the flush."""
        return self.size_bytes > self._bytes_max * _COPIES_SHARE

    def put(self, ledger_id: int, entry_id: int, data: bytes | memoryview) -> None:
        """Keep an entry; it replaces an earlier copy. There must be room for it, except during the start."""
        half = self.active
        ledger = half.ledgers.get(ledger_id)
        if ledger is None:
            ledger = half.ledgers[ledger_id] = {}
        grown = len(data) + ENTRY_OVERHEAD_BYTES
        old = ledger.get(entry_id)
        if old is None:
            half.entries += 1
        else:
            grown -= len(old) + ENTRY_OVERHEAD_BYTES
        half.size_bytes += grown
        self.room_bytes -= grown
        ledger[entry_id] = data

    def drop(self, ledger_id: int) -> None:
        """Remove those entries of a ledger that no flush writes yet."""
        self.room_bytes += self.active.drop(ledger_id)

    def get(self, ledger_id: int, entry_id: int) -> bytes | memoryview | None:
        """Return the entry, or None if it is not cached."""
        data = self.active.get(ledger_id, entry_id)
        if data is None and self.flushing is not None:
            data = self.flushing.get(ledger_id, entry_id)
        return data

    def note_place(self, ledger_id: int, entry_id: int, note: JournalNote) -> None:
        """Note the place of an entry in a journal, if the cache has that copy of it."""
        for half in (self.active, self.flushing):
            if half is not None and half.get(ledger_id, entry_id) is note.payload:
                half.places[ledger_id, entry_id] = note
                return

    @property
    def is_journaled(self) -> bool:
        return self.active.is_journaled and (self.flushing is None or self.flushing.is_journaled)

    def note_refusal(self) -> None:
        """Note that a journal refused entries of either half: a crash loses them until they are flushed."""
        for half in (self.active, self.flushing):
            if half is not None:
                half.is_journaled = False

    def entry_ids(self, ledger_id: int) -> set[int]:
        """Return the ids of the ledger's cached entries."""
        found = set(self.active.ledgers.get(ledger_id, ()))
        if self.flushing is not None:
            found.update(self.flushing.ledgers.get(ledger_id, ()))
        return found

    def swap(self) -> CacheHalf:
        """Start a flush: make the active half the flushing one and return it."""
        assert self.flushing is None, "a half that is not on disk is never replaced"
        self.flushing = self.active
        self.active = CacheHalf()
        return self.flushing

    def flushed(self) -> None:
        """Drop the flushing half, which is on disk and indexed."""
        assert self.flushing is not None, "there was a swap before"
        self.room_bytes += self.flushing.size_bytes
        self.flushing = None
