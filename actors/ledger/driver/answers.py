"""Answers of bookies, as they came over the wire, turned into what cores understand."""

from __future__ import annotations

from typing import Any

import msgpack

from actors.errors import BookieError, EntryDamagedError, FrameError
from actors.ledger.effects import LedgerEntry, Reply
from actors.wire.entry import decode_entry
from actors.wire.frame import decode_batch
from actors.wire.messages import Answer, Status

REPLIES = {
    Status.OK: Reply.OK,
    Status.NO_LEDGER: Reply.ABSENT,  # I6: only these two are explicit negatives
    Status.NO_ENTRY: Reply.ABSENT,
    Status.FENCED: Reply.FENCED,
    Status.READ_ONLY: Reply.READ_ONLY,
    Status.UNAUTHORIZED: Reply.UNAUTHORIZED,
}


def reply_of(answer: Answer | BookieError) -> Reply:
    """Everything that is not clear is UNKNOWN (I7)."""
    if isinstance(answer, BookieError):
        return Reply.UNKNOWN
    return REPLIES.get(answer.status, Reply.UNKNOWN)


def copy_reply_of(answer: Answer | BookieError) -> Reply:
    """For reads of entries: a bookie that cannot read its copy has a bad one. No verdict rests on it either (I7)."""
    if not isinstance(answer, BookieError) and answer.status in (Status.STORAGE_ERROR, Status.DAMAGED):
        return Reply.DAMAGED
    return reply_of(answer)


def entry_in(body: memoryview | bytes, ledger_id: int) -> LedgerEntry:
    """The checked entry in an answer.

    Raises:
        EntryDamagedError: its checksum is wrong, or it is an entry of another ledger.
    """
    entry = decode_entry(body)
    if entry.ledger_id != ledger_id:
        raise EntryDamagedError(f"an entry of ledger {entry.ledger_id} came for ledger {ledger_id}")
    return LedgerEntry(entry.entry_id, bytes(entry.payload), entry.length, entry.last_add_confirmed)


def one_entry(
    answer: Answer | BookieError, body: memoryview, ledger_id: int, entry_id: int
) -> tuple[Reply, LedgerEntry | None]:
    """Outcome of a READ."""
    reply = copy_reply_of(answer)
    if reply is not Reply.OK:
        return reply, None
    try:
        entry = entry_in(body, ledger_id)
    except EntryDamagedError:
        return Reply.DAMAGED, None
    return (Reply.OK, entry) if entry.entry_id == entry_id else (Reply.DAMAGED, None)


def batch_of_entries(
    answer: Answer | BookieError, body: memoryview, ledger_id: int, first_entry_id: int
) -> tuple[Reply, list[LedgerEntry]]:
    """Outcome of a READ_BATCH: what is consecutive and undamaged from the first entry on."""
    reply = copy_reply_of(answer)
    entries: list[LedgerEntry] = []
    if reply is not Reply.OK:
        return reply, entries
    try:
        for data in decode_batch(body):
            entry = entry_in(data, ledger_id)
            if entry.entry_id != first_entry_id + len(entries):
                break
            entries.append(entry)
    except (EntryDamagedError, FrameError):
        pass  # what came before the damage is good
    return (Reply.OK, entries) if entries else (Reply.DAMAGED, entries)


def lac_of(answer: Answer | BookieError, body: memoryview, ledger_id: int) -> tuple[Reply, int, LedgerEntry | None]:
    """Outcome of a READ_LAC: the greater of the bookie's LAC and the one in the entry that came along."""
    reply = reply_of(answer)
    if isinstance(answer, BookieError):
        return reply, -1, None
    if reply is not Reply.OK or not body:
        return reply, answer.last_add_confirmed, None
    try:
        entry = entry_in(body, ledger_id)
    except EntryDamagedError:
        return Reply.DAMAGED, answer.last_add_confirmed, None
    return reply, max(answer.last_add_confirmed, entry.last_add_confirmed), entry


def runs_of(answer: Answer | BookieError, body: memoryview) -> tuple[Reply, tuple[tuple[int, int], ...]]:
    """Outcome of a LIST_ENTRIES: sorted, disjoint runs of entry ids."""
    reply = reply_of(answer)
    if reply is not Reply.OK:
        return reply, ()
    try:
        listed: list[Any] = msgpack.unpackb(body) if body else []
        return reply, tuple(sorted((int(first), int(last)) for first, last in listed))
    except (ValueError, TypeError, msgpack.UnpackException):
        return Reply.UNKNOWN, ()
