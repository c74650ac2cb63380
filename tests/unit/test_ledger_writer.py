"""The writer core: edges that the scripts do not reach, and random runs against what must always hold."""

from __future__ import annotations

import random

import pytest

from actors.errors import LedgerClosedError, LedgerError, LedgerFencedError, QuorumLostError
from actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    Effect,
    ReadMetadata,
    Reply,
    SendAdd,
    SendLac,
    WriteMetadata,
    WriterClosed,
    WriterFailed,
)
from actors.ledger.limits import MetadataLimits, WriterLimits
from actors.ledger.writer import WriterCore, WriterState
from heliograph.errors import InvalidConfigError, MessageTooLargeError
from metadata.errors import ConnectionLossError
from metadata.model import LedgerState, Versioned
from tests.unit.ledger_cores import Spares, ledger, only, some


def test_ids_and_lengths_are_given_together() -> None:
    writer = WriterCore(ledger(), Spares())
    sent = [writer.add(bytes(size), 0) for size in (3, 0, 5)]
    assert [(s.entry_id, s.length) for s in sent] == [(0, 3), (1, 3), (2, 8)]
    assert (writer.last_add_pushed, writer.length, writer.confirmed_length) == (2, 8, 0)


def test_confirmations_wait_for_their_turn() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(3):
        writer.add(b"x", 0)
    for entry_id in (2, 1):
        for position in range(3):
            assert writer.on_add_answer(entry_id, position, 0, Reply.OK, 0) == []
    assert writer.on_add_answer(0, 1, 0, Reply.OK, 0) == []
    assert writer.on_add_answer(0, 2, 0, Reply.OK, 0) == [AddsConfirmed(2)]  # I1 I2
    assert writer.entries_held == 1  # entry 0 waits for its third bookie
    assert writer.on_add_answer(0, 0, 0, Reply.OK, 0) == []
    assert (writer.entries_held, writer.bytes_held) == (0, 0)


def test_one_bookie_is_counted_once() -> None:
    writer = WriterCore(ledger(), Spares())
    writer.add(b"x", 0)
    for _ in range(3):
        assert writer.on_add_answer(0, 1, 0, Reply.OK, 0) == []
    assert writer.last_add_confirmed == -1  # I1


def test_the_window_bounds_entries_and_bytes() -> None:
    limits = WriterLimits(in_flight_entries_max=10, in_flight_bytes_max=100, entry_bytes_max=100)
    writer = WriterCore(ledger(), Spares(), limits)
    assert writer.has_room(100)
    writer.add(bytes(90), 0)
    assert writer.has_room(10)
    assert not writer.has_room(11)  # I15
    with pytest.raises(MessageTooLargeError) as caught:
        writer.add(bytes(101), 0)
    assert caught.value.limit == "100 bytes"
    assert writer.last_add_pushed == 0


def test_credentials_refused_ends_the_writer() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    effects = writer.on_add_answer(0, 0, 0, Reply.UNAUTHORIZED, 0)
    assert [type(effect) for effect in effects] == [AddsFailed, WriterFailed]
    with pytest.raises(LedgerError, match="credentials"):
        writer.add(b"x", 0)


def test_an_add_too_old_ends_the_writer() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(add_timeout_ms=20_000))
    writer.add(b"x", 1_000)
    assert writer.tick(20_999) == []
    effects = writer.tick(21_000)
    assert isinstance(only(AddsFailed, effects).error, QuorumLostError)


def test_a_store_that_is_silent_ends_the_change() -> None:
    limits = WriterLimits(metadata=MetadataLimits(retry_ms=100, wait_ms=1_000))
    writer = WriterCore(ledger(), Spares("b4"), limits)
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    assert writer.is_changing
    assert writer.on_metadata_unknown(write.request, 10) == []
    read = only(ReadMetadata, writer.tick(110))
    assert writer.on_metadata_written(write.request, 1, 120) == []  # late: the record is being read again
    assert writer.on_metadata_unknown(read.request, 200) == []
    effects = writer.tick(1_000)
    assert isinstance(only(WriterFailed, effects).error, ConnectionLossError)
    assert isinstance(only(AddsFailed, effects).error, ConnectionLossError)


def test_a_change_is_not_made_on_a_record_that_is_not_open() -> None:
    writer = WriterCore(ledger(), Spares("b4"))
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    taken = ledger(state=LedgerState.IN_RECOVERY).record
    effects = writer.on_metadata_read(read.request, Versioned(taken, 5), 0)
    assert isinstance(only(WriterFailed, effects).error, LedgerFencedError)  # I9


def test_an_older_record_does_not_overwrite_a_newer_one() -> None:
    writer = WriterCore(Versioned(ledger().record, 3), Spares("b4"))
    writer.add(b"x", 0)
    write = only(WriteMetadata, writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    again = only(ReadMetadata, writer.on_metadata_read(read.request, Versioned(ledger().record, 2), 0))
    assert again.request > read.request


def test_close_fails_what_has_no_outcome_and_only_that() -> None:
    writer = WriterCore(ledger(), Spares())
    for _ in range(3):
        writer.add(b"x", 0)
    for position in (0, 1):
        writer.on_add_answer(0, position, 0, Reply.OK, 0)
    effects = writer.close(0)
    failed, write = only(AddsFailed, effects), only(WriteMetadata, effects)
    assert (failed.first_entry_id, failed.last_entry_id) == (1, 2)
    assert isinstance(failed.error, LedgerClosedError)
    assert (write.record.last_entry_id, write.record.length) == (0, 1)  # I5
    assert writer.on_add_answer(1, 0, 0, Reply.OK, 0) == []
    assert some(WriterClosed, writer.on_metadata_written(write.request, 1, 0))
    assert writer.state is WriterState.CLOSED
    assert writer.is_quiet


def test_a_failed_writer_may_be_closed_and_tells_no_outcome_twice() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(quorum_wait_ms=100))
    writer.add(b"x", 0)
    writer.on_add_answer(0, 0, 0, Reply.UNKNOWN, 0)
    writer.on_add_answer(0, 1, 0, Reply.UNKNOWN, 0)
    assert some(AddsFailed, writer.tick(100))
    effects = writer.close(200)
    assert not some(AddsFailed, effects)
    write = only(WriteMetadata, effects)
    assert write.record.last_entry_id == -1
    assert only(WriterClosed, writer.on_metadata_written(write.request, 1, 200)).metadata.is_closed


def test_close_is_refused_when_another_client_closed_elsewhere() -> None:
    writer = WriterCore(ledger(), Spares())
    write = only(WriteMetadata, writer.close(0))
    read = only(ReadMetadata, writer.on_metadata_conflict(write.request, 0))
    elsewhere = ledger(state=LedgerState.CLOSED, last=4).record
    effects = writer.on_metadata_read(read.request, Versioned(elsewhere, 3), 0)
    assert isinstance(only(CloseFailed, effects).error, LedgerFencedError)  # I5
    assert isinstance(writer.closed_reason, LedgerFencedError)


def test_the_lac_is_told_once_it_stands_still() -> None:
    writer = WriterCore(ledger(), Spares(), WriterLimits(explicit_lac_interval_ms=100))
    writer.add(b"x", 0)
    assert not writer.is_quiet
    for position in range(3):
        writer.on_add_answer(0, position, 0, Reply.OK, 10)
    assert writer.tick(50) == []
    assert writer.tick(100) == [SendLac(1, 0, ("b1", "b2", "b3"))]
    assert writer.tick(300) == []
    assert writer.is_quiet


@pytest.mark.parametrize(
    "wrong",
    [
        {"in_flight_entries_max": 0},
        {"entry_bytes_max": 0},
        {"entry_bytes_max": 64 << 20},
        {"quorum_wait_ms": 0},
        {"quorum_wait_ms": 40_000},
        {"degraded_retry_ms": 0},
        {"ensemble_change_delay_ms": -1},
        {"explicit_lac_interval_ms": -1},
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError):
        WriterLimits(**wrong)  # type: ignore[arg-type]


class RandomRun:
    """Bookies that store, fail and answer in any order; one writer; checks after every step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size = self.random.choice([(3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (4, 4, 2)])
        self.names = [f"b{n}" for n in range(size[0])]
        spares = Spares(*[f"s{n}" for n in range(self.random.choice([0, 1, 3, 8]))])
        spares.available = set(self.names)
        found = ledger(" ".join(self.names), write_quorum=size[1], ack_quorum=size[2])
        limits = WriterLimits(
            quorum_wait_ms=2_000,
            degraded_retry_ms=300,
            ensemble_change_delay_ms=self.random.choice([0, 0, 500]),
            metadata=MetadataLimits(retry_ms=50, wait_ms=5_000),
        )
        self.stored: dict[str, set[int]] = {}
        self.record, self.version = found.record, 0
        self.writer = WriterCore(found, spares, limits)
        self.now = 0
        self.under_way: list[Effect | tuple[SendAdd, int, str]] = []
        self.outcomes: dict[int, str] = {}
        self.accepted = 0
        self.badness = self.random.choice([0.0, 0.02, 0.2])

    def run(self) -> None:
        for _ in range(300):
            if self.writer.state is not WriterState.OPEN:
                break
            step = self.random.random()
            if step < 0.3 and self.writer.has_room(1):
                self.accepted += 1
                self.take([self.writer.add(b"x", self.now)])
            elif step < 0.4:
                self.now += self.random.choice([1, 50, 400])
                self.take(self.writer.tick(self.now))
            elif self.under_way:
                self.answer(self.under_way.pop(self.random.randrange(len(self.under_way))))
            self.check()
        self.take(self.writer.close(self.now))
        self.finish()

    def finish(self) -> None:
        self.badness = 0.0
        for _ in range(10_000):
            if not self.under_way and self.writer.is_quiet:
                break
            if self.under_way:
                self.answer(self.under_way.pop(0))
            else:
                self.now += 50
                self.take(self.writer.tick(self.now))
        self.check()
        assert sorted(self.outcomes) == list(range(self.accepted)), "one outcome for each accepted add"
        confirmed = [n for n, outcome in self.outcomes.items() if outcome == "confirmed"]
        if self.writer.state is WriterState.CLOSED:
            assert self.record.last_entry_id == len(confirmed) - 1  # I5
            assert self.record.length == len(confirmed)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendAdd():
                    self.under_way += [(effect, position, name) for position, name in effect.targets]
                case WriteMetadata() | ReadMetadata():
                    self.under_way.append(effect)
                case AddsConfirmed():
                    first = len(self.outcomes)
                    for entry_id in range(first, effect.last_entry_id + 1):
                        self.outcomes[entry_id] = "confirmed"  # I2: in order, and never twice
                    self.check_confirmed(first, effect.last_entry_id)
                case AddsFailed():
                    assert effect.first_entry_id == len(self.outcomes)
                    for entry_id in range(effect.first_entry_id, effect.last_entry_id + 1):
                        self.outcomes[entry_id] = "failed"

    def answer(self, sent: Effect | tuple[SendAdd, int, str]) -> None:
        is_bad = self.random.random() < self.badness
        if isinstance(sent, tuple):
            effect, position, name = sent
            if not is_bad or self.random.random() < 0.5:
                self.stored.setdefault(name, set()).add(effect.entry_id)
            reply = Reply.UNKNOWN if is_bad else Reply.OK
            self.take(self.writer.on_add_answer(effect.entry_id, position, effect.epoch, reply, self.now))
        elif isinstance(sent, WriteMetadata):
            self.write(sent, is_bad)
        elif isinstance(sent, ReadMetadata):
            found = Versioned(self.record, self.version)
            self.take(self.writer.on_metadata_read(sent.request, found, self.now))

    def write(self, sent: WriteMetadata, is_bad: bool) -> None:
        landed = sent.version == self.version and (not is_bad or self.random.random() < 0.5)
        if landed:
            keys = [segment.first_entry_id for segment in sent.record.segments]
            assert keys == sorted(set(keys))  # I8
            assert self.record.last_segment.first_entry_id <= keys[-1]
            self.record, self.version = sent.record, sent.version + 1
        if is_bad:
            self.take(self.writer.on_metadata_unknown(sent.request, self.now))
        elif landed:
            self.take(self.writer.on_metadata_written(sent.request, self.version, self.now))
        else:
            self.take(self.writer.on_metadata_conflict(sent.request, self.now))

    def check(self) -> None:
        assert -1 <= self.writer.last_add_confirmed <= self.writer.last_add_pushed  # I2

    def check_confirmed(self, first: int, last: int) -> None:
        """What is confirmed now is on Qa of the bookies that the store names for it."""  # I1
        for entry_id in range(first, last + 1):
            named = self.record.segment_of(entry_id).bookies
            places = [named[(entry_id + i) % len(named)] for i in range(self.record.write_quorum)]
            copies = sum(entry_id in self.stored.get(name, ()) for name in places)
            assert copies >= self.record.ack_quorum, f"entry {entry_id} has {copies} copies on {places}"


@pytest.mark.parametrize("block", range(10))
def test_random_runs(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        RandomRun(seed).run()
