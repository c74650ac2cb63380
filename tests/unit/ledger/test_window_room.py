"""The adds in flight of all ledgers of a client: a bookie that does not answer holds a bounded part of its memory."""

from __future__ import annotations

from heliograph.actors.ledger.effects import SendAdd
from heliograph.actors.ledger.limits import WriterLimits
from heliograph.actors.ledger.pipeline import WindowRoom
from heliograph.actors.ledger.writer import WriterCore
from tests.unit.ledger.cores import Spares, ledger

ENTRY = bytes(1_000)
ROOM = 100 * len(ENTRY)
LIMITS = WriterLimits(in_flight_bytes_max=40 * len(ENTRY), entry_bytes_max=10 * len(ENTRY))


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


def test_all_ledgers_behind_a_silent_bookie_fit_the_room_and_leave_as_much_to_others() -> None:  # I15
    room = WindowRoom(ROOM)
    slow = writers(24, room)
    sent = [fill(writer, range(2)) for writer in slow]
    assert sum(writer.bytes_held for writer in slow) == ROOM - room.left
    assert -len(slow) * len(ENTRY) <= room.left < ROOM // 8, "beyond the room a ledger has a single add"
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
