"""Ranges: which entries of which ledgers a task reads, and from which bookies. Pure: no I/O, no Ray, no Spark.

A plan is the list of all entries of a topic that are acknowledged at one moment, as ranges in publish order per
partition. A range carries all that a reader needs, so a task in a Spark executor can read bookies without Ray and
without metadata. The read needs no check: the entries were at or below the LAC when the range was planned, so they
do not change and are not deleted before the topic is trimmed (I1, I3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from heliograph.base.errors import BadRequestError
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment

Position = tuple[int, int]  # ledger id, entry id

# Of the work of one task: bounds what a failed one reads again. (I15)
TASK_BYTES_MAX = 128 << 20
TASK_ENTRIES_MAX = 65_536
TASK_BYTES_MIN = 8 << 20  # below it, starting a task costs more than reading
ENTRY_BYTES_GUESS = 64 << 10  # an entry of many small messages, where the plan does not know sizes
BACK_ENTRIES_MAX = 10_000  # before an entry, that are looked through for the first chunk of its message (I15)
_FORMAT = 7
# 1 had no grant, 2 no compacted ledgers, 3 no sizes, 4 no ledger before, 5 no racks, 6 no latest values.
_FORMATS_READ = (1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Entries ``first_entry_id`` to ``last_entry_id``, both included, of one ledger of one (non-partitioned) topic.

    ``segments`` are the segments of the ledger up to the end of the range: a message in chunks may begin before the
    range, in the same ledger. ``addresses`` are the data-plane addresses of
    their bookies when the range was planned, without the bookies that were not registered, and ``racks`` those of the
    same bookies. ``grant`` is the right to
    read the ledger from bookies that ask for one, good for any holder until it ends. A ``compacted`` ledger holds
    entries of the topic that compaction kept, each after its original position. ``size`` is that of the entries in
    bytes, as if all of their ledger had the same; 0: not known. A message in chunks that ends in the range may begin in
    ``before``, the end of the ledger before this one. Of ranges that are ``latest`` only the latest row of each key is
    wanted; one task reads all of a partition.
    """

    topic: str
    partition: int  # -1 when the topic is not a partition
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    addresses: tuple[tuple[str, str], ...] = ()
    grant: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)  # who signs the certificates of bookies, in PEM
    compacted: bool = False
    size: int = 0
    before: LedgerRange | None = field(default=None, repr=False, compare=False)
    racks: tuple[tuple[str, str], ...] = ()
    latest: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.first_entry_id <= self.last_entry_id, "a range holds at least one entry"
        assert self.segments, "a range knows the segments of its entries"
        assert self.segments[0].first_entry_id <= self.first_entry_id, "the first segment covers the first entry"

    @property
    def entries(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    @property
    def entry_bytes(self) -> int:
        """Return the mean size of an entry in bytes, at least 1."""
        return max(1, self.size // self.entries) if self.size else ENTRY_BYTES_GUESS

    def record(self) -> LedgerMetadata:
        """Return the part of the ledger's metadata that the readers of ``actors/ledger`` need for this range.

        Its state is CLOSED at the range's last entry: a reader that has only the range must not read beyond it (I3).
        """
        first, *others = self.segments
        return LedgerMetadata(
            ledger_id=self.ledger_id,
            ensemble_size=len(first.bookies),
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            segments=(replace(first, first_entry_id=0), *others),
            state=LedgerState.CLOSED,
            last_entry_id=self.last_entry_id,
        )

    def without_grant(self) -> LedgerRange:
        return replace(self, grant="", before=self.before.without_grant() if self.before else None)

    def tail(self) -> LedgerRange:
        """Return the entries at the end of the range that may be those before a message's last chunk."""
        return replace(
            narrow(self, max(self.first_entry_id, self.last_entry_id - BACK_ENTRIES_MAX), self.last_entry_id),
            before=None,
        )

    def to_json(self) -> str:
        """Return the range as a text that ``range_from_json`` reads; a Spark row carries it to an executor."""
        found = {item.name: getattr(self, item.name) for item in fields(self)} | {
            "segments": [[segment.first_entry_id, list(segment.bookies)] for segment in self.segments],
            "addresses": dict(self.addresses),
            "racks": dict(self.racks),
            "before": self.before.to_json() if self.before else "",
        }
        return json.dumps({"format": _FORMAT, **found})


def range_from_json(text: str) -> LedgerRange:
    """Return the range that ``LedgerRange.to_json`` wrote.

    Raises:
        BadRequestError: the text is not a range, or another version of Heliograph wrote it.
    """
    try:
        fields = json.loads(text)
        if fields.pop("format") not in _FORMATS_READ:
            raise BadRequestError("this ledger range was planned by another version of Heliograph", field="range")
        segments = tuple(Segment(first, tuple(bookies)) for first, bookies in fields.pop("segments"))
        addresses = tuple(sorted(fields.pop("addresses").items()))
        racks = tuple(sorted(fields.pop("racks", {}).items()))
        before = fields.pop("before", "")
        previous = range_from_json(before) if before else None
        return LedgerRange(segments=segments, addresses=addresses, racks=racks, before=previous, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequestError(f"not a ledger range: {text:.200}", field="range") from error


def range_of(
    topic: str,
    partition: int,
    ledger: LedgerMetadata,
    first_entry_id: int,
    last_entry_id: int,
    addresses: Mapping[str, str],
    grant: str = "",
    authority: str = "",
    size: int = 0,
    racks: Mapping[str, str] | None = None,
) -> LedgerRange:
    """Return a range of a ledger whose record was read **after** ``last_entry_id`` was known to be acknowledged.

    The order matters: only then does the record name the segments that hold the entries (I8).
    """
    segments = _segments_up_to(ledger.segments, last_entry_id)
    bookies = {bookie for segment in segments for bookie in segment.bookies}
    known = tuple(sorted([(bookie, addresses[bookie]) for bookie in bookies if bookie in addresses]))
    return LedgerRange(
        topic=topic,
        partition=partition,
        ledger_id=ledger.ledger_id,
        first_entry_id=first_entry_id,
        last_entry_id=last_entry_id,
        write_quorum=ledger.write_quorum,
        ack_quorum=ledger.ack_quorum,
        segments=segments,
        addresses=known,
        grant=grant,
        authority=authority,
        size=size,
        racks=tuple([(bookie, racks[bookie]) for bookie, _ in known if bookie in racks]) if racks else (),
    )


def cut(
    ranges: Iterable[LedgerRange],
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
) -> list[LedgerRange]:
    """Return the part of ``ranges`` from ``start`` (included) up to ``end`` (excluded).

    Args:
        start: per partition (-1 for a topic without partitions) the first position wanted; a partition that is not
            named is taken from its beginning.
        end: per partition the first position no longer wanted; a partition that is not named is taken to its end.
    """
    pieces: list[LedgerRange] = []
    for piece in ranges:
        first, last = piece.first_entry_id, piece.last_entry_id
        if start is not None and piece.partition in start:
            ledger_id, entry_id = start[piece.partition]
            if piece.ledger_id < ledger_id:
                continue
            if piece.ledger_id == ledger_id:
                first = max(first, entry_id)
        if end is not None and piece.partition in end:
            ledger_id, entry_id = end[piece.partition]
            if piece.ledger_id > ledger_id:
                continue
            if piece.ledger_id == ledger_id:
                last = min(last, entry_id - 1)
        if first <= last:
            pieces.append(narrow(piece, first, last))
    return pieces


def narrow(piece: LedgerRange, first_entry_id: int, last_entry_id: int) -> LedgerRange:
    """Return the part of ``piece`` between two of its entries, both included."""
    assert piece.first_entry_id <= first_entry_id <= last_entry_id <= piece.last_entry_id, "a part lies inside"
    if (first_entry_id, last_entry_id) == (piece.first_entry_id, piece.last_entry_id):
        return piece
    segments = _segments_up_to(piece.segments, last_entry_id)
    bookies = {bookie for segment in segments for bookie in segment.bookies}
    return replace(
        piece,
        first_entry_id=first_entry_id,
        last_entry_id=last_entry_id,
        segments=segments,
        addresses=tuple([pair for pair in piece.addresses if pair[0] in bookies]),
        racks=tuple([pair for pair in piece.racks if pair[0] in bookies]),
        size=piece.size * (last_entry_id - first_entry_id + 1) // piece.entries,
        before=piece.before if first_entry_id < BACK_ENTRIES_MAX else None,
    )


def split(
    ranges: Sequence[LedgerRange], tasks: int, task_bytes_min: int = 1, task_entries_max: int = TASK_ENTRIES_MAX
) -> list[list[LedgerRange]]:
    """Split ranges into work for about ``tasks`` parallel tasks: lists of pieces, in the order of ``ranges``.

    Every entry is in exactly one piece. A task gets at most ``TASK_BYTES_MAX`` and ``task_entries_max``, so there may
    be more of them, and at least ``task_bytes_min``, so there may be less. It always gets one entry. Ranges of
    which the latest rows are wanted are split by partition instead.
    """
    assert tasks >= 1, "at least one task"
    if ranges and ranges[0].latest:
        return by_partition(ranges)
    assert task_entries_max >= 1, "a task reads at least one entry"
    total = sum(piece.entry_bytes * piece.entries for piece in ranges)
    share = min(TASK_BYTES_MAX, max(task_bytes_min, -(-total // tasks)))
    work: list[list[LedgerRange]] = []
    bytes_left = entries_left = 0
    for whole in ranges:
        first, mean = whole.first_entry_id, whole.entry_bytes
        while first <= whole.last_entry_id:
            if bytes_left <= 0 or entries_left == 0:
                work.append([])
                bytes_left, entries_left = share, task_entries_max
            last = min(whole.last_entry_id, first + min(entries_left, -(-bytes_left // mean)) - 1)
            work[-1].append(narrow(whole, first, last))
            bytes_left -= (last - first + 1) * mean
            entries_left -= last - first + 1
            first = last + 1
    return work


def limited(ranges: Sequence[LedgerRange], entries_max: int | None, bytes_max: int | None) -> list[LedgerRange]:
    """Return the first part of ``ranges`` for one micro-batch, shared fairly by the partitions.

    It has at most ``entries_max`` entries and about ``bytes_max`` bytes, but at least one entry if there is any.
    """
    if entries_max is None and bytes_max is None:
        return list(ranges)
    partitions = list(dict.fromkeys((piece.topic, piece.partition) for piece in ranges))
    entries_left = float("inf") if entries_max is None else entries_max
    bytes_left = float("inf") if bytes_max is None else bytes_max
    chosen: list[LedgerRange] = []
    for index, partition in enumerate(partitions):
        entries_share = max(1, entries_left // (len(partitions) - index))
        bytes_share = bytes_left // (len(partitions) - index)
        for piece in (piece for piece in ranges if (piece.topic, piece.partition) == partition):
            fits = min(piece.entries, entries_share, entries_left, bytes_share // piece.entry_bytes)
            count = int(max(fits, 0 if chosen else 1))
            if count == 0:
                break
            taken = narrow(piece, piece.first_entry_id, piece.first_entry_id + count - 1)
            chosen.append(taken)
            size = taken.entries * piece.entry_bytes
            entries_share, entries_left = entries_share - count, entries_left - count
            bytes_share, bytes_left = bytes_share - size, bytes_left - size
            if count < piece.entries:
                break
    return chosen


def by_partition(ranges: Iterable[LedgerRange]) -> list[list[LedgerRange]]:
    """Return the ranges of each partition, in the order of ``ranges``."""
    found: dict[str, list[LedgerRange]] = {}
    for piece in ranges:
        found.setdefault(piece.topic, []).append(piece)
    return list(found.values())


def _segments_up_to(segments: Sequence[Segment], last_entry_id: int) -> tuple[Segment, ...]:
    """Return the segments that hold any entry up to the last one, included."""
    return tuple(segment for segment in segments if segment.first_entry_id <= last_entry_id)
