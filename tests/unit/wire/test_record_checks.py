"""The loops that check many records at once equal the checks of one."""

from __future__ import annotations

import pytest

from heliograph.actors.bookie.store.entry_log import _count_sound, _verify
from heliograph.actors.errors import EntryDamagedError, FrameError
from heliograph.actors.ledger.driver.answers import batch_of_entries, entry_in
from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.wire.entry import LENGTH_BYTES, encode_entry
from heliograph.actors.wire.frame import decode_batch, encode_batch
from heliograph.actors.wire.messages import Answer, Status

LEDGER = 7
ENTRIES = [encode_entry(LEDGER, number, number - 1, 10 * number, bytes([number]) * 9) for number in range(3, 6)]
BATCH = encode_batch(list(ENTRIES))
SIZES = tuple(LENGTH_BYTES + len(entry) for entry in ENTRIES)
OK = Answer(1, Status.OK)


def _is_sound(record: bytes, size: int, number: int) -> bool:
    try:
        _verify(memoryview(record), size, LEDGER, number)
    except EntryDamagedError:
        return False
    return True


def _one_by_one(answer: bytes) -> tuple[Reply, list[LedgerEntry]]:
    """Decode an answer entry by entry."""
    entries: list[LedgerEntry] = []
    try:
        for data in decode_batch(answer):
            entry = entry_in(data, LEDGER)
            if entry.entry_id != 3 + len(entries):
                break
            entries.append(entry)
    except FrameError:
        entries.clear()
    except EntryDamagedError:
        pass
    return (Reply.OK if entries else Reply.DAMAGED), entries


def test_sound_records_are_all_counted_and_decoded() -> None:
    assert _count_sound(memoryview(BATCH), SIZES, LEDGER, 3) == (3, len(BATCH))
    reply, entries = batch_of_entries(OK, memoryview(BATCH), LEDGER, 3)
    assert reply is Reply.OK
    assert entries == [entry_in(entry, LEDGER) for entry in ENTRIES]
    assert all(type(entry.payload) is bytes for entry in entries)


@pytest.mark.parametrize("at", range(SIZES[0] + SIZES[1]))
def test_a_flipped_byte_ends_both_before_its_record(at: int) -> None:
    damaged = bytearray(BATCH)
    damaged[at] ^= 0x10
    good = 0 if at < SIZES[0] else 1
    start = sum(SIZES[:good])
    assert not _is_sound(bytes(damaged[start : start + SIZES[good]]), SIZES[good], 3 + good)
    assert _count_sound(memoryview(damaged), SIZES, LEDGER, 3) == (good, start)
    assert batch_of_entries(OK, memoryview(damaged), LEDGER, 3) == _one_by_one(bytes(damaged))


@pytest.mark.parametrize("kept", range(SIZES[0], sum(SIZES)))
def test_what_is_cut_off_is_neither_counted_nor_decoded(kept: int) -> None:
    good = 2 if kept >= SIZES[0] + SIZES[1] else 1
    assert _count_sound(memoryview(BATCH)[:kept], SIZES, LEDGER, 3)[0] == good
    assert batch_of_entries(OK, memoryview(BATCH)[:kept], LEDGER, 3) == _one_by_one(BATCH[:kept])


@pytest.mark.parametrize(("ledger_id", "first"), [(LEDGER + 1, 3), (LEDGER, 4)])
def test_records_of_others_are_refused(ledger_id: int, first: int) -> None:
    assert _count_sound(memoryview(BATCH), SIZES, ledger_id, first) == (0, 0)
    assert batch_of_entries(OK, memoryview(BATCH), ledger_id, first) == (Reply.DAMAGED, [])
