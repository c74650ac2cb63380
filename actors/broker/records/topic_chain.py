"""The chain of a topic as its record and its pieces hold it (pure).

The record has the newest ledgers. Above ``TAIL_LEDGERS_MAX`` of them, the oldest leave for pieces of
``PIECE_LEDGERS``, and ``PIECE_REFS`` pieces of one level become a piece of the next. So the size of a record does not
grow with the chain: a chain of n ledgers has about log(n) / log(``PIECE_REFS``) levels, each with less than three times
``PIECE_REFS`` pieces (I23). A piece
is created, and deleted, in the same write that changes the record, so no state in between exists (I9, I12).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from heliograph.actors.broker.records.topic_record import deletable_ledgers, with_deletable
from heliograph.metadata.chain_records import ChainPiece, PieceRef
from heliograph.metadata.model import LedgerInfo, TopicRecord

ReadPiece = Callable[[int], Awaitable[ChainPiece]]  # by its number

PIECE_LEDGERS = 512  # of a piece of level 1: 20 KB
PIECE_REFS = 128  # of a piece of a higher level: 9 KB
TAIL_LEDGERS_MAX = 2 * PIECE_LEDGERS  # in the record: 80 KB; earlier releases manage 13,000
# While a broker of an earlier release, which reads no pieces, may serve the topic: 320 KB. With more, only brokers of
# this release can serve it.
SHARED_LEDGERS_MAX = 4_096
PIECES_PER_WRITE_MAX = 32  # pieces that one write creates: 620 KB of the 1 MiB that a request may have  # I15


def fold(record: TopicRecord) -> tuple[TopicRecord, dict[int, ChainPiece]]:
    """Return the record without the ledgers that are too many for it, and the pieces to create in the same write.

    Empty ones among them leave the chain, as when a topic is opened.
    """
    ledgers, pieces = list(record.ledgers), list(record.pieces)
    number, created = record.next_piece, dict[int, ChainPiece]()
    empty: list[int] = []
    while len(ledgers) > TAIL_LEDGERS_MAX and len(created) < PIECES_PER_WRITE_MAX:
        assert all(info.closed_ms for info in ledgers[:PIECE_LEDGERS]), "a piece has closed ledgers"  # I12
        run = [info for info in ledgers[:PIECE_LEDGERS] if info.entries]
        empty += [info.ledger_id for info in ledgers[:PIECE_LEDGERS] if not info.entries]
        if run:
            created[number] = _piece_of(run)
            pieces.append(_ref_of_ledgers(number, run))
            number += 1
        del ledgers[:PIECE_LEDGERS]
    # Of each level the pieces next to the newer ones count: older ones may come from a head that was expanded.
    level, stop = 1, len(pieces)
    while stop and pieces[stop - 1].level == level:
        start = stop
        while start and pieces[start - 1].level == level:
            start -= 1
        stop = start
        if sum(ref.level == level for ref in pieces[start : start + 2 * PIECE_REFS]) == 2 * PIECE_REFS:
            merged = pieces[start : start + PIECE_REFS]
            created[number] = ChainPiece(pieces=tuple(merged))
            pieces[start : start + PIECE_REFS] = [_ref_of_refs(number, level + 1, merged)]
            number, stop = number + 1, start + 1
        level += 1
    if len(ledgers) == len(record.ledgers):
        return record, created
    folded = replace(record, ledgers=tuple(ledgers), pieces=tuple(pieces), next_piece=number)
    assert ledger_count(record) == ledger_count(folded) + len(empty), "no ledger is lost"  # I12
    return with_deletable(folded, [*deletable_ledgers(record), *empty]) if empty else folded, created


def is_foldable(record: TopicRecord) -> bool:
    """Return whether the record has more ledgers than it should."""
    return len(record.ledgers) > TAIL_LEDGERS_MAX


def with_head_expanded(record: TopicRecord, piece: ChainPiece) -> TopicRecord:
    """Return the record with the pieces that its oldest piece is made of, in place of that one, whose node can go."""
    head = record.pieces[0]
    assert head.level > 1, "the piece is made of pieces"
    return replace(record, pieces=(*parts_of(head, piece), *record.pieces[1:]))


def with_head_dropped(record: TopicRecord, head: Sequence[LedgerInfo], count: int) -> TopicRecord:
    """Return the record without its ``count`` oldest ledgers.

    Args:
        head: the oldest ledgers: all of the oldest piece, which is of level 1, or of the record if it has no piece.
    """
    assert 0 < count <= len(head), "only ledgers of the head leave"  # I14
    if not record.pieces:
        assert count < len(record.ledgers), "the ledger that takes entries stays"  # I14
        return replace(record, ledgers=record.ledgers[count:])
    ref, left = record.pieces[0], head[count:]
    assert ref.level == 1, "the oldest piece has ledgers"
    assert len(head) == ref.ledgers, "all ledgers of the piece that are left"
    kept = [_ref_of_ledgers(ref.number, left)] if left else []
    return replace(record, pieces=(*kept, *record.pieces[1:]))


def rows_of(ref: PieceRef, piece: ChainPiece) -> list[LedgerInfo]:
    """Return the ledgers of a piece of level 1 that were not trimmed, oldest first."""
    columns = zip(piece.ledger_ids, piece.entries, piece.sizes, piece.closed_ms, strict=True)
    return [LedgerInfo(*row) for row in columns if row[0] >= ref.first_id]


def parts_of(ref: PieceRef, piece: ChainPiece) -> list[PieceRef]:
    """Return the pieces in a piece of a higher level, without trimmed ones."""
    parts = [part for part in piece.pieces if part.last_id >= ref.first_id]
    rest = parts[1:]
    parts[0] = parts[0]._replace(
        first_id=ref.first_id,
        ledgers=ref.ledgers - sum(part.ledgers for part in rest),
        entries=ref.entries - sum(part.entries for part in rest),
        size=ref.size - sum(part.size for part in rest),
        closed_ms=ref.closed_ms,
    )
    assert parts[0].ledgers > 0, "a piece that has nothing left is not named"
    return parts


def ledger_count(record: TopicRecord) -> int:
    return len(record.ledgers) + sum(ref.ledgers for ref in record.pieces)


def stored_bytes(record: TopicRecord) -> int:
    return sum(info.size for info in record.ledgers) + sum(ref.size for ref in record.pieces)


def last_ledger_id(record: TopicRecord) -> int:
    """Return the newest ledger of the chain; -1 if there is none."""
    if record.ledgers:
        return record.ledgers[-1].ledger_id
    return record.pieces[-1].last_id if record.pieces else -1


async def ledgers_after(record: TopicRecord, after: int, read_piece: ReadPiece) -> AsyncIterator[LedgerInfo]:
    """Yield the ledgers of a chain, oldest first, from the newest one whose id is at most ``after`` on.

    Two pieces of each level are read first, and then one for each ``PIECE_LEDGERS`` ledgers. Raises what ``read_piece``
    does.
    """
    before: LedgerInfo | None = None
    async for info in _rows_after(record, after, read_piece):
        if info.ledger_id > after:
            if before is not None:
                yield before
            yield info
            before = None
        else:
            before = info
    if before is not None:
        yield before


async def ledgers_among(wanted: Collection[int], record: TopicRecord, read_piece: ReadPiece) -> set[int]:
    """Return those of some ledgers that are in a chain. Only pieces that may name one are read. Raises what
    ``read_piece`` does."""
    found = {info.ledger_id for info in record.ledgers}.intersection(wanted)
    refs = list(record.pieces)
    while refs:
        ref = refs.pop()
        mine = [one for one in wanted if ref.first_id <= one <= ref.last_id]
        if mine:
            piece = await read_piece(ref.number)
            found.update(set(piece.ledger_ids).intersection(mine))
            refs += parts_of(ref, piece) if ref.level > 1 else ()
    return found


async def _rows_after(record: TopicRecord, after: int, read_piece: ReadPiece) -> AsyncIterator[LedgerInfo]:
    async def below(refs: Sequence[PieceRef]) -> AsyncIterator[LedgerInfo]:
        at = bisect_right(refs, after, key=lambda ref: ref.last_id)
        for ref in refs[max(at - 1, 0) :]:
            piece = await read_piece(ref.number)
            if ref.level > 1:
                async for info in below(parts_of(ref, piece)):
                    yield info
            else:
                for info in rows_of(ref, piece):
                    yield info

    async for info in below(record.pieces):
        yield info
    for info in record.ledgers:
        yield info


def _piece_of(run: Sequence[LedgerInfo]) -> ChainPiece:
    return ChainPiece(
        tuple(info.ledger_id for info in run),
        tuple(info.entries for info in run),
        tuple(info.size for info in run),
        tuple(info.closed_ms for info in run),
    )


def _ref_of_ledgers(number: int, run: Sequence[LedgerInfo]) -> PieceRef:
    return PieceRef(
        number,
        1,
        run[0].ledger_id,
        run[-1].ledger_id,
        len(run),
        sum(info.entries for info in run),
        sum(info.size for info in run),
        run[0].closed_ms,
    )


def _ref_of_refs(number: int, level: int, run: Sequence[PieceRef]) -> PieceRef:
    return PieceRef(
        number,
        level,
        run[0].first_id,
        run[-1].last_id,
        sum(ref.ledgers for ref in run),
        sum(ref.entries for ref in run),
        sum(ref.size for ref in run),
        run[0].closed_ms,
    )
