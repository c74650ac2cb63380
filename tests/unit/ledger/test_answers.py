"""Conclusions from the answers of bookies: nothing but a clear answer counts as "no such entry"."""

from __future__ import annotations

import msgpack
import pytest

from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.ledger.driver.answers import (
    batch_of_entries,
    copy_reply_of,
    lac_of,
    one_entry,
    reply_of,
    runs_of,
)
from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.frame import encode_batch
from heliograph.actors.wire.messages import Answer, Status

LOST = BookieUnavailableError("no answer in time")
NOTHING = memoryview(b"")


def ok(last_add_confirmed: int = -1) -> Answer:
    return Answer(1, Status.OK, last_add_confirmed)


def stored(entry_id: int, ledger_id: int = 7, size: int = 1) -> bytes:
    return encode_entry(ledger_id, entry_id, entry_id - 1, entry_id + 1, b"x" * size)


def damaged(entry_id: int) -> bytes:
    entry = stored(entry_id)
    return entry[:-1] + bytes([entry[-1] ^ 1])


def test_only_explicit_negatives_are_negatives() -> None:
    clear = {
        Status.OK: Reply.OK,
        Status.NO_LEDGER: Reply.ABSENT,
        Status.NO_ENTRY: Reply.ABSENT,
        Status.FENCED: Reply.FENCED,
        Status.READ_ONLY: Reply.READ_ONLY,
        Status.UNAUTHORIZED: Reply.UNAUTHORIZED,
    }
    for status in Status:
        assert reply_of(Answer(1, status)) is clear.get(status, Reply.UNKNOWN)  # I6 I7
    assert reply_of(LOST) is Reply.UNKNOWN


@pytest.mark.parametrize("status", [Status.STORAGE_ERROR, Status.DAMAGED])
def test_a_copy_that_a_bookie_cannot_read_is_damaged_and_not_missing(status: Status) -> None:
    answer = Answer(1, status)
    assert copy_reply_of(answer) is Reply.DAMAGED  # I7
    assert one_entry(answer, NOTHING, 7, 3) == (Reply.DAMAGED, None)
    assert batch_of_entries(answer, NOTHING, 7, 3) == (Reply.DAMAGED, [])
    assert copy_reply_of(Answer(1, Status.UNKNOWN_LEDGER_STATE)) is Reply.UNKNOWN
    assert copy_reply_of(LOST) is Reply.UNKNOWN


def test_one_entry() -> None:
    assert one_entry(ok(), memoryview(stored(3)), 7, 3) == (Reply.OK, LedgerEntry(3, b"x", 4, 2))
    for wrong in (damaged(3), stored(4), stored(3, ledger_id=8), b"", b"short"):
        assert one_entry(ok(), memoryview(wrong), 7, 3) == (Reply.DAMAGED, None)
    assert one_entry(Answer(1, Status.NO_ENTRY), NOTHING, 7, 3) == (Reply.ABSENT, None)
    assert one_entry(LOST, NOTHING, 7, 3) == (Reply.UNKNOWN, None)


def test_a_batch_ends_before_what_is_wrong() -> None:
    def read(*entries: bytes) -> tuple[Reply, list[int]]:
        reply, found = batch_of_entries(ok(), memoryview(encode_batch(list(entries))), 7, 3)
        return reply, [entry.entry_id for entry in found]

    assert read(stored(3), stored(4), stored(5)) == (Reply.OK, [3, 4, 5])
    assert read(stored(3), damaged(4), stored(5)) == (Reply.OK, [3])
    assert read(stored(3), stored(5)) == (Reply.OK, [3])
    assert read(stored(3), stored(4, ledger_id=8)) == (Reply.OK, [3])
    assert read(damaged(3), stored(4)) == (Reply.DAMAGED, [])
    assert read(stored(2), stored(3)) == (Reply.DAMAGED, [])
    assert read() == (Reply.DAMAGED, [])
    cut = encode_batch([stored(3), stored(4)])[:-1]
    assert batch_of_entries(ok(), memoryview(cut), 7, 3) == (Reply.DAMAGED, [])
    assert batch_of_entries(LOST, NOTHING, 7, 3) == (Reply.UNKNOWN, [])


def test_large_entries_of_a_batch_are_not_copied() -> None:
    body = memoryview(bytearray(encode_batch([stored(3, size=1 << 20), stored(4)])))
    _, (large, small) = batch_of_entries(ok(), body, 7, 3)
    assert isinstance(large.payload, memoryview)
    assert large.payload.obj is body.obj
    assert small.payload == b"x"
    assert isinstance(small.payload, bytes), "it does not keep the answer in memory"


def test_the_lac_is_the_greater_of_two() -> None:
    entry = LedgerEntry(9, b"x", 10, 8)
    assert lac_of(ok(5), memoryview(stored(9)), 7) == (Reply.OK, 8, entry)
    assert lac_of(ok(9), memoryview(stored(9)), 7) == (Reply.OK, 9, entry)
    assert lac_of(ok(5), NOTHING, 7) == (Reply.OK, 5, None)
    assert lac_of(ok(5), memoryview(damaged(9)), 7) == (
        Reply.DAMAGED,
        5,
        None,
    )  # the bookie was reached, and is fenced if that was asked
    assert lac_of(ok(5), memoryview(stored(9, ledger_id=8)), 7) == (Reply.DAMAGED, 5, None)
    assert lac_of(Answer(1, Status.NO_LEDGER), NOTHING, 7) == (Reply.ABSENT, -1, None)
    assert lac_of(Answer(1, Status.STORAGE_ERROR), NOTHING, 7) == (Reply.UNKNOWN, -1, None)
    assert lac_of(LOST, NOTHING, 7) == (Reply.UNKNOWN, -1, None)


@pytest.mark.parametrize("junk", [b"\xc1", b"\x93", msgpack.packb(7), msgpack.packb([1]), msgpack.packb([[1, "x"]])])
def test_a_list_that_cannot_be_understood_says_nothing(junk: bytes) -> None:
    assert runs_of(ok(), memoryview(junk)) == (Reply.UNKNOWN, ())  # an empty list would make every entry a hole


def test_a_list_of_runs() -> None:
    packed = memoryview(msgpack.packb([[5, 9], [0, 3]]))
    assert runs_of(ok(), packed) == (Reply.OK, ((0, 3), (5, 9)))
    assert runs_of(ok(), NOTHING) == (Reply.OK, ())
    assert runs_of(Answer(1, Status.NO_LEDGER), NOTHING) == (Reply.ABSENT, ())
    assert runs_of(LOST, NOTHING) == (Reply.UNKNOWN, ())


@pytest.mark.parametrize(
    "listed",
    [
        [[0.0, 1]],
        [[0, float("inf")]],
        [["0", "1"]],
        [[True, 1]],
        [[None, 1]],
        [[-1, 1]],
        [[0, 1 << 63]],
        [[0, [1]]],
        7,
        {},
    ],
    ids=repr,
)
def test_runs_of_anything_but_integers_are_unknown(listed: object) -> None:
    expected = Reply.OK if listed == {} else Reply.UNKNOWN
    assert runs_of(ok(), memoryview(msgpack.packb(listed))) == (expected, ())


@pytest.mark.parametrize(("lac", "length"), [(-(1 << 63), 1), (3, 1), (1 << 62, 1), (2, -1)])
def test_an_entry_whose_lac_or_length_cannot_be_is_damaged(lac: int, length: int) -> None:
    entry = encode_entry(7, 3, lac, length, b"x")
    assert one_entry(ok(), memoryview(entry), 7, 3) == (Reply.DAMAGED, None)
    assert lac_of(ok(1), memoryview(entry), 7) == (Reply.DAMAGED, 1, None)
