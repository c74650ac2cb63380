"""The window of a repair, and the numbers of its requests: a late answer is not taken for a newer one. The window of
all writers of a client: a bookie that does not answer holds a bounded part of its memory."""

from __future__ import annotations

import pytest

from heliograph.actors.ledger import writer as writer_module
from heliograph.actors.ledger.effects import Effect, ReadBatch, RepairFinished, Reply, SendAdd, SendCopy
from heliograph.actors.ledger.limits import ReaderLimits, RepairLimits, WriterLimits
from heliograph.actors.ledger.pipeline import WindowRoom
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.repair.core import UNCLEAR_READS_MAX, RepairCore
from heliograph.actors.ledger.repair.window import RepairWindow
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.model import LedgerState
from tests.unit.ledger.cores import Spares, entry, ledger, only, some

CLOSED = ledger(state=LedgerState.CLOSED, last=9)
WHOLE = ((0, 9),)
ENTRY = bytes(1_000)
ROOM = 100 * len(ENTRY)
LIMITS = WriterLimits(in_flight_bytes_max=40 * len(ENTRY), entry_bytes_max=10 * len(ENTRY))


def listed(core: RepairCore, *bookies: str) -> list[Effect]:
    """Return the effects of a repair after these bookies list all entries."""
    effects = core.start(0)
    for name in bookies:
        effects = core.on_entries_listed(name, Reply.OK, WHOLE, 0)
    return effects


def moving(limits: RepairLimits) -> tuple[RepairCore, list[Effect]]:
    """Return a repair that replaces b2 by b4."""
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth(), limits)
    return core, listed(core, "b1", "b3")


def reported(*bookies: str) -> tuple[RepairCore, list[Effect]]:
    """Return a repair of bookies that were reported and list all entries, so that their copies are read."""
    core = RepairCore(CLOSED, bookies, ["b1", "b2", "b3"], Spares(), BookieHealth())
    return core, listed(core, "b1", "b2", "b3")


def test_copies_that_were_taken_make_room_in_bytes() -> None:
    core, effects = moving(RepairLimits(in_flight_entries_max=100, in_flight_bytes_max=4))
    sent: list[int] = []
    for first in (0, 2):
        asked = only(ReadBatch, effects)
        assert (asked.first_entry_id, asked.max_bytes) == (first, 2)  # I15: one half is read, the other is written
        effects = core.on_batch_answer(asked.request, Reply.OK, [entry(first), entry(first + 1)], 0)
        sent += [copy.entry.entry_id for copy in some(SendCopy, effects)]
    assert sent == [0, 1, 2, 3]
    assert not some(ReadBatch, effects)
    assert core.on_copy_answer(0, "b4", Reply.OK, 0) == []
    assert only(ReadBatch, core.on_copy_answer(1, "b4", Reply.OK, 0)).first_entry_id == 4


def test_a_late_answer_to_the_last_read_is_not_one_to_this() -> None:
    core, effects = moving(RepairLimits(in_flight_entries_max=4))
    first = only(ReadBatch, effects)
    second = only(ReadBatch, core.tick(ReaderLimits().speculative_ms))
    effects = core.on_batch_answer(first.request, Reply.OK, [entry(0), entry(1)], 600)
    following = only(ReadBatch, effects)
    assert following.request not in (first.request, second.request)
    assert core.on_batch_answer(second.request, Reply.OK, [entry(0), entry(1)], 700) == []
    effects = core.on_batch_answer(following.request, Reply.OK, [entry(2), entry(3)], 700)
    assert [copy.entry.entry_id for copy in some(SendCopy, effects)] == [2, 3]


def test_a_late_answer_of_a_bookie_that_is_read_through_is_dropped() -> None:
    core, effects = reported("b2")
    first = only(ReadBatch, effects)
    second = only(ReadBatch, core.on_batch_answer(first.request, Reply.OK, [entry(n) for n in range(4)], 0))
    assert second.first_entry_id == 4
    assert core.on_batch_answer(first.request, Reply.DAMAGED, [], 0) == []
    effects = core.on_batch_answer(second.request, Reply.OK, [entry(n) for n in range(4, 10)], 0)
    assert only(RepairFinished, effects).complete


def test_each_bookie_that_is_read_through_has_tries_of_its_own() -> None:
    core, effects = reported("b2", "b3")
    for _ in range(UNCLEAR_READS_MAX + 1):
        asked = only(ReadBatch, effects)
        assert asked.bookie_id == "b2"
        effects = core.on_batch_answer(asked.request, Reply.UNKNOWN, [], 0)
    for first in range(UNCLEAR_READS_MAX):
        asked = only(ReadBatch, effects)
        assert (asked.bookie_id, asked.first_entry_id) == ("b3", first)
        effects = core.on_batch_answer(asked.request, Reply.UNKNOWN, [], 0)
    assert only(ReadBatch, effects).bookie_id == "b3"


def test_the_window_grows_while_copies_are_stored_quickly_and_is_halved_while_they_are_not() -> None:
    limits = RepairLimits(in_flight_bytes_least=8, in_flight_bytes_max=32, copy_ms=5)
    window = RepairWindow(limits)
    sizes = [window.size]
    for _ in range(20):
        window.note_stored(100, limits.copy_ms)
        sizes.append(window.size)
    assert sizes[:4] == [8, 10, 12, 14]
    assert max(sizes) == sizes[-1] == limits.in_flight_bytes_max  # I15
    for _ in range(3):
        window.note_stored(100, limits.copy_ms + 1)
        sizes.append(window.size)
    assert sizes[-3:] == [16, 8, limits.in_flight_bytes_least]  # repair goes on, however slow its bookies are


def test_the_window_is_adjusted_by_the_mean_of_all_copies_that_it_holds() -> None:
    window = RepairWindow(RepairLimits(in_flight_bytes_least=8, in_flight_bytes_max=32, copy_ms=5))
    for waited in (9, 1, 1):
        window.note_stored(1, waited)
        assert window.size == 8
    window.note_stored(1, 9)
    assert window.size == 10  # their mean is 5


def test_a_refused_copy_makes_the_window_as_small_as_it_may_be() -> None:
    window = RepairWindow(RepairLimits(in_flight_bytes_least=8, in_flight_bytes_max=32))
    window.note_stored(100, 0)
    window.note_refused()
    assert window.size == 8


def test_a_bound_below_the_smallest_window_holds() -> None:
    window = RepairWindow(RepairLimits(in_flight_bytes_least=8, in_flight_bytes_max=4))
    window.note_stored(100, 0)
    assert window.size == 4  # I15


def test_slow_copies_make_the_next_read_smaller() -> None:
    limits = RepairLimits(in_flight_entries_max=100, in_flight_bytes_max=64, in_flight_bytes_least=4)
    window = RepairWindow(limits)
    while window.size < 8:
        window.note_stored(100, 0)
    core = RepairCore(CLOSED, ["b2"], ["b1", "b3", "b4"], Spares("b4"), BookieHealth(), limits, window=window)
    asked = only(ReadBatch, listed(core, "b1", "b3"))
    assert asked.max_bytes == 4
    effects = core.on_batch_answer(asked.request, Reply.OK, [entry(n) for n in range(4)], 0)
    asked = only(ReadBatch, effects)
    effects = core.on_batch_answer(asked.request, Reply.OK, [entry(n) for n in range(4, 8)], 0)
    assert not some(ReadBatch, effects)
    effects = []
    for n in range(8):
        effects += core.on_copy_answer(n, "b4", Reply.OK, limits.copy_ms + 1)
    assert only(ReadBatch, effects).max_bytes == 2


# -- writers


def writers(count: int, room: WindowRoom) -> list[WriterCore]:
    return [WriterCore(ledger(), Spares(), LIMITS, room=room) for _ in range(count)]


def answered_by(writer: WriterCore, add: SendAdd, positions: range) -> None:
    for position in positions:
        writer.on_adds_stored("b", [(add.entry_id, add.epoch, {"b": position})])


def fill(writer: WriterCore, positions: range) -> list[SendAdd]:
    """Add entries that these bookies store, until the window is full."""
    sent = []
    while writer.has_room(len(ENTRY)) and (add := writer.offer(ENTRY, 0)) is not None:
        answered_by(writer, add, positions)
        sent.append(add)
    assert writer.offer(ENTRY, 0) is None, "both say the same"
    return sent


def test_one_ledger_behind_a_silent_bookie_has_its_own_window_only() -> None:
    room = WindowRoom(ROOM)
    (writer,) = writers(1, room)
    assert len(fill(writer, range(2))) == 40
    assert writer.last_add_confirmed == 39
    assert room.left == ROOM - writer.bytes_held == 60 * len(ENTRY)


@pytest.mark.parametrize("least", [1, 4])
def test_all_ledgers_behind_a_silent_bookie_fit_the_room_and_leave_as_much_to_others(  # I15
    monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(writer_module, "WINDOW_BYTES_LEAST", least * len(ENTRY))
    room = WindowRoom(ROOM)
    slow = writers(24, room)
    sent = [fill(writer, range(2)) for writer in slow]
    assert sum(writer.bytes_held for writer in slow) == ROOM - room.left
    assert -len(slow) * least * len(ENTRY) <= room.left < ROOM // 8, "beyond the room a ledger has its least"
    assert min(len(adds) for adds in sent) == least
    (healthy,) = writers(1, room)
    for _ in range(200):
        add = healthy.offer(ENTRY, 0)
        assert add is not None
        answered_by(healthy, add, range(3))
    assert healthy.bytes_held == 0
    for writer, adds in zip(slow, sent, strict=True):
        for add in adds:
            answered_by(writer, add, range(2, 3))
    assert room.left == ROOM
    assert len(fill(slow[0], range(2))) == 40


def test_a_writer_that_ends_gives_everything_back() -> None:
    room = WindowRoom(ROOM)
    for is_closed in (True, False):
        (writer,) = writers(1, room)
        fill(writer, range(2))
        fill(writer, range(1))
        assert room.left < ROOM
        if is_closed:
            writer.close(0)
        else:
            writer.on_fenced()
        assert room.left == ROOM
