"""Random runs of the writer core, with the invariants checked after every step."""

from __future__ import annotations

import random

import pytest

from heliograph.actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    Effect,
    ReadMetadata,
    Reply,
    SendAdd,
    WriteMetadata,
)
from heliograph.actors.ledger.limits import MetadataLimits, WriterLimits
from heliograph.actors.ledger.state import WriterState
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.model import Versioned
from tests.unit.ledger.cores import Spares, ledger


class RandomRun:
    """A random run of one writer with bookies that store, fail and answer in any order."""

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
        """Check that what is confirmed now is on Qa of the bookies that the store names for it."""  # I1
        for entry_id in range(first, last + 1):
            named = self.record.segment_of(entry_id).bookies
            places = [named[(entry_id + i) % len(named)] for i in range(self.record.write_quorum)]
            copies = sum(entry_id in self.stored.get(name, ()) for name in places)
            assert copies >= self.record.ack_quorum, f"entry {entry_id} has {copies} copies on {places}"


@pytest.mark.parametrize("block", range(10))
def test_random_runs(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        RandomRun(seed).run()
