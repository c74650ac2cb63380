"""Changes of a ledger's segments as pure functions, and the port that chooses bookies. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from heliograph.metadata.model import LedgerMetadata, Segment


class Chooser(Protocol):
    """Port that chooses bookies for a core. It answers at once, without I/O."""

    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        """Return replacements by position: bookies outside ``ensemble`` and ``excluded``, as many as there are."""

    def is_available(self, bookie_id: str) -> bool:
        """Whether the bookie is registered as writable now."""

    def note_failure(self, bookie_id: str, now: int) -> None:
        """Note that the bookie failed a request."""


class Replacement:
    """The replacement of one bookie of an ensemble by another."""

    __slots__ = ("new", "old")

    def __init__(self, old: str, new: str) -> None:
        assert old != new, "a bookie is not replaced by itself"
        self.old = old
        self.new = new


def replace_from(
    record: LedgerMetadata, first_entry_id: int, replacements: Mapping[int, Replacement]
) -> LedgerMetadata | None:
    """Return the record with bookies of its last segment replaced for entries from ``first_entry_id`` on.

    A position that no longer names its ``old`` bookie is left as it is. None when that holds for all of them (I9).
    """
    last = record.last_segment
    assert first_entry_id >= last.first_entry_id, "a segment starts above its predecessor's LAC"  # I8
    assert replacements, "a change replaces a bookie"
    bookies = list(last.bookies)
    for position, replacement in replacements.items():
        if bookies[position] == replacement.old:
            bookies[position] = replacement.new
    if tuple(bookies) == last.bookies:
        return None
    kept = record.segments[:-1] if first_entry_id == last.first_entry_id else record.segments
    return replace(record, segments=(*kept, Segment(first_entry_id, tuple(bookies))))


def replace_bookie(
    record: LedgerMetadata, first_entry_id: int, position: int, old: str, new: str
) -> LedgerMetadata | None:
    """Return the record with one bookie of a segment replaced. None if the position does not name ``old`` (I9)."""
    assert old != new, "a bookie is not replaced by itself"
    segments = list(record.segments)
    for index, segment in enumerate(segments):
        if segment.first_entry_id == first_entry_id and segment.bookies[position] == old and new not in segment.bookies:
            bookies = list(segment.bookies)
            bookies[position] = new
            assert len(set(bookies)) == record.ensemble_size, "a segment names a bookie once"
            segments[index] = Segment(first_entry_id, tuple(bookies))
            return replace(record, segments=tuple(segments))
    return None


def merge_segments(record: LedgerMetadata, own: Mapping[int, tuple[str, ...]]) -> tuple[Segment, ...]:
    """Return the record's segments with a recovery's private ones: the same key replaces, greater keys append (I8)."""
    segments = list(record.segments)
    for first_entry_id in sorted(own):
        last = segments[-1]
        assert first_entry_id >= last.first_entry_id, "a recovery changes only the end of a ledger"  # I8
        segment = Segment(first_entry_id, own[first_entry_id])
        if first_entry_id == last.first_entry_id:
            segments[-1] = segment
        else:
            segments.append(segment)
    assert len(segments) <= len(record.segments) + len(own), "each private segment is put in once"
    return tuple(segments)
