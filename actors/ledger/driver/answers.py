"""Conversion of bookies' answers from the wire into what cores take. Pure."""

from __future__ import annotations

from typing import Any

import msgpack
from crc32c import crc32c

from heliograph.actors.errors import BookieError, EntryDamagedError, FrameError
from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.wire.entry import (
    CHECKED_AT,
    ENTRY_HEADER_BYTES,
    ENTRY_WORD,
    LENGTH_BYTES,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    check_entry,
    entry_length,
)
from heliograph.actors.wire.frame import decode_batch
from heliograph.actors.wire.messages import NUMBER_MAX, Answer, Status

VIEWED_BYTES_LEAST = 32 << 10  # of an entry of a batch that is not copied: an answer holds few of them

REPLIES = {
    Status.OK: Reply.OK,
    Status.NO_LEDGER: Reply.ABSENT,  # I6: only these two are explicit negatives
    Status.NO_ENTRY: Reply.ABSENT,
    Status.FENCED: Reply.FENCED,
    Status.READ_ONLY: Reply.READ_ONLY,
    Status.UNAUTHORIZED: Reply.UNAUTHORIZED,
}


def reply_of(answer: Answer | BookieError) -> Reply:
    """Return the kind of an answer. Whatever is not clear is UNKNOWN (I7)."""
    if isinstance(answer, BookieError):
        return Reply.UNKNOWN
    return REPLIES.get(answer.status, Reply.UNKNOWN)


def copy_reply_of(answer: Answer | BookieError) -> Reply:
    """Return the kind of an answer to a read: DAMAGED if the bookie cannot read its copy. It proves nothing (I7)."""
    if not isinstance(answer, BookieError) and answer.status in (Status.STORAGE_ERROR, Status.DAMAGED):
        return Reply.DAMAGED
    return reply_of(answer)


def entry_in(body: memoryview | bytes, ledger_id: int) -> LedgerEntry:
    """Decode and check the entry in an answer; its payload is a copy.

    Raises:
        EntryDamagedError: its checksum is wrong, it belongs to another ledger, or its LAC or length cannot be.
    """
    found_ledger_id, entry_id, last_add_confirmed = check_entry(body)
    length = entry_length(body)
    if found_ledger_id != ledger_id:
        raise EntryDamagedError(f"an entry of ledger {found_ledger_id} came for ledger {ledger_id}")
    if not -1 <= last_add_confirmed < entry_id or length < 0:  # I2: a LAC is below its entry
        raise EntryDamagedError(f"entry {ledger_id}:{entry_id} has LAC {last_add_confirmed} and length {length}")
    return LedgerEntry(entry_id, bytes(memoryview(body)[ENTRY_HEADER_BYTES:]), length, last_add_confirmed)


def one_entry(
    answer: Answer | BookieError, body: memoryview, ledger_id: int, entry_id: int
) -> tuple[Reply, LedgerEntry | None]:
    """Return the outcome of a READ."""
    reply = copy_reply_of(answer)
    if reply is not Reply.OK:
        return reply, None
    try:
        entry = entry_in(body, ledger_id)
    except EntryDamagedError:
        return Reply.DAMAGED, None
    return (Reply.OK, entry) if entry.entry_id == entry_id else (Reply.DAMAGED, None)


def batch_of_entries(
    answer: Answer | BookieError, body: memoryview, ledger_id: int, first_entry_id: int, *, copies: bool = True
) -> tuple[Reply, list[LedgerEntry]]:
    """Return the outcome of a READ_BATCH: the consecutive undamaged entries from the first one on.

    Args:
        copies: whether payloads below VIEWED_BYTES_LEAST are copied. All others are views of the answer.
    """
    reply = copy_reply_of(answer)
    entries: list[LedgerEntry] = []
    if reply is not Reply.OK:
        return reply, entries
    body = memoryview(body)
    entry_id, start, total = first_entry_id, 0, len(body)
    while start + RECORD_HEAD_BYTES <= total:  # as ``entry_in`` checks, in one loop: a scan has many small entries
        size, version, checksum, found_ledger_id, found_entry_id, lac, length = RECORD_HEAD.unpack_from(body, start)
        payload, end = start + RECORD_HEAD_BYTES, start + LENGTH_BYTES + size
        if not payload <= end <= total or version != ENTRY_WORD or crc32c(body[start + CHECKED_AT : end]) != checksum:
            break  # the entries before the damage are good
        if found_ledger_id != ledger_id or found_entry_id != entry_id or not -1 <= lac < entry_id or length < 0:
            break  # I2: a LAC is below its entry
        data: bytes | memoryview = body[payload:end]
        if copies and size < VIEWED_BYTES_LEAST:
            data = bytes(data)
        entries.append(LedgerEntry(entry_id, data, length, lac))
        entry_id, start = entry_id + 1, end
    if start < total:
        try:
            decode_batch(body[start:])
        except FrameError:  # the lengths do not add up: nothing of the answer counts
            return Reply.DAMAGED, []
    return (Reply.OK, entries) if entries else (Reply.DAMAGED, entries)


def lac_of(answer: Answer | BookieError, body: memoryview, ledger_id: int) -> tuple[Reply, int, LedgerEntry | None]:
    """Return the outcome of a READ_LAC: the greater of the bookie's LAC and the LAC of the entry in the answer."""
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
    """Return the outcome of a LIST_ENTRIES: sorted runs of entry ids. Anything but runs of integers is UNKNOWN."""
    reply = reply_of(answer)
    if reply is not Reply.OK:
        return reply, ()
    try:
        listed: list[Any] = msgpack.unpackb(body) if body else []
        runs = tuple(sorted((first, last) for first, last in listed))
    except (ValueError, TypeError, msgpack.UnpackException):
        return Reply.UNKNOWN, ()
    is_sound = all(type(first) is type(last) is int and 0 <= first <= last <= NUMBER_MAX for first, last in runs)
    return (reply, runs) if is_sound else (Reply.UNKNOWN, ())
