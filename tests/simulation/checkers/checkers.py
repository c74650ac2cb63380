"""Checks after every step: I1 to I10 and I12, and I14 for ledgers.

The checkers see every bookie's disk, every version of every record, and what every writer told its clients. They share
no code with the cores. This file checks entries; ``record_checker`` checks metadata.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from heliograph.actors.ledger.effects import LedgerEntry, ReadEntry, Reply, SendAdd
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.model import LedgerMetadata, LedgerState
from tests.simulation.checkers.judge import LIVENESS, Judge
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.store import Author, SimulatedStore


@dataclass
class LedgerHistory:
    """What clients were told about one ledger."""

    accepted: dict[int, bytes] = field(default_factory=dict)
    confirmed: int = -1  # the greatest entry that was acknowledged to a client
    shown: int = -1  # the greatest entry that a reader saw or was told of
    failed: set[int] = field(default_factory=set)
    superseded: set[int] = field(default_factory=set)  # accepted when a later ledger already had messages


class Checkers:
    """The history of entries, and the checks on it."""

    def __init__(self, store: SimulatedStore, bookies: Mapping[str, SimulatedBookie], judge: Judge) -> None:
        self.store = store
        self.bookies = bookies
        self.judge = judge
        self.ledgers: dict[int, LedgerHistory] = {}
        self.writers: defaultdict[str, list[tuple[WriterCore, list[int]]]] = defaultdict(list)  # with LAC and LAP seen
        self.confirmed_messages = 0
        self.negatives: defaultdict[tuple[int, int], set[str]] = defaultdict(set)  # (core, entry) -> denied by
        self.listed: set[int] = set()  # every ledger that was ever in the topic's list
        self._ids: set[int] = set()
        self._tails: dict[str, tuple[int, int]] = {}  # reader -> the last ledger and entry that it saw
        self._drained: dict[int, int] = {}  # ledger that a reader has finished -> the last entry that it saw

    # -- writing

    def on_id(self, name: str, ledger_id: int) -> None:
        """Note that a broker got an id for a new ledger."""
        self.judge.require(
            ledger_id not in self._ids, "I9", f"{name} got ledger id {ledger_id}, which was given before"
        )
        self._ids.add(ledger_id)

    def on_writer(self, name: str, writer: WriterCore) -> None:
        """Note that a broker opened a ledger for writing."""
        is_listed = writer.ledger_id in self.listed
        self.judge.require(is_listed, "I12", f"{name} writes ledger {writer.ledger_id}, which the topic does not list")
        self.writers[name].append((writer, [-1, -1]))
        self.ledgers.setdefault(writer.ledger_id, LedgerHistory())

    def on_accepted(self, name: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Note that a writer gave an add its id."""
        history = self.ledgers[ledger_id]
        self.judge.require(entry_id not in history.accepted, "I2", f"entry {ledger_id}:{entry_id} was given twice")
        history.accepted[entry_id] = payload
        if self._has_later_messages(ledger_id):
            history.superseded.add(entry_id)

    def on_confirmed(self, name: str, ledger_id: int, last_entry_id: int) -> None:
        """Check acknowledgements up to an entry that a client got."""
        require = self.judge.require
        history = self.ledgers[ledger_id]
        require(last_entry_id > history.confirmed, "I2", f"{name} confirmed {ledger_id}:{last_entry_id} again")
        for entry_id in range(history.confirmed + 1, last_entry_id + 1):
            require(entry_id in history.accepted, "I2", f"{name} confirmed {ledger_id}:{entry_id}, never accepted")
            require(entry_id not in history.failed, "I2", f"{ledger_id}:{entry_id} has two outcomes")
            require(entry_id not in history.superseded, "I12", f"{ledger_id}:{entry_id} is older than what came before")
            self.check_copies(ledger_id, entry_id)
            self.confirmed_messages += 1
        history.confirmed = last_entry_id
        record = self.record(ledger_id)
        if record is not None and record.is_closed:
            end = record.last_entry_id
            require(last_entry_id <= end, "I5", f"{name} confirmed {ledger_id}:{last_entry_id} beyond the end {end}")

    def on_failed(self, name: str, ledger_id: int, first: int, last: int) -> None:
        """Check adds that ended without a confirmation."""
        history = self.ledgers[ledger_id]
        for entry_id in range(first, last + 1):
            self.judge.require(entry_id > history.confirmed, "I2", f"{ledger_id}:{entry_id} has two outcomes")
            self.judge.require(entry_id not in history.failed, "I2", f"{ledger_id}:{entry_id} failed twice")
            history.failed.add(entry_id)

    def on_writer_end(self, name: str, writer: WriterCore) -> None:
        """Check that every add of a writer that ended has its outcome."""
        history = self.ledgers[writer.ledger_id]
        for entry_id in history.accepted:
            has_outcome = entry_id <= history.confirmed or entry_id in history.failed
            self.judge.require(has_outcome, "I2", f"{name} ended without an outcome for {writer.ledger_id}:{entry_id}")

    def on_send_add(self, author: Author, effect: SendAdd) -> None:
        """Check that a writer sends to bookies that metadata names, and a recovery nothing below its segment."""
        records = self.store.history[effect.ledger_id]
        name = f"{effect.ledger_id}:{effect.entry_id}"
        if effect.recovery:
            floors = [r.last_segment.first_entry_id for r in records if r.state is LedgerState.IN_RECOVERY]
            is_above = not floors or effect.entry_id >= min(floors)
            self.judge.require(is_above, "I8", f"{author} writes {name} back, which is below the last segment")
            return
        for position, bookie_id in effect.targets:
            named = any(r.segment_of(effect.entry_id).bookies[position] == bookie_id for r in records)
            self.judge.require(named, "I8", f"{author} sent {name} to {bookie_id} before it was persisted")

    def on_entry_answer(self, author: Author, effect: ReadEntry, bookie_id: str, reply: Reply) -> None:
        """Note what a recovery is told about an entry. Only an explicit negative to a fencing read proves its absence.

        It counts only from a bookie that metadata named for the entry during the recovery. The private segments of a
        recovery do not count before it closes the ledger.
        """
        if effect.fence and reply is Reply.ABSENT:
            records = [r for r in self.store.history[effect.ledger_id] if r.state is LedgerState.IN_RECOVERY]
            if any(bookie_id in write_set(record, effect.entry_id) for record in records):
                self.negatives[author.number, effect.entry_id].add(bookie_id)

    def on_fencing(self, name: str, record: LedgerMetadata, usable: Collection[str]) -> None:
        """Check that an auditor closes an open ledger only if another bookie could take a place in it (I20)."""
        can_be_filled = not set(usable).issubset(record.last_segment.bookies)
        text = f"{name} fences ledger {record.ledger_id}, and no other bookie is there"
        self.judge.require(can_be_filled, "I20", text)

    def on_collect(self, bookie_id: str, ledger_ids: set[int]) -> None:
        """Check that a bookie may delete the data of these ledgers."""
        kept = sorted(ledger_ids.intersection(self.store.ledgers()))
        self.judge.require(not kept, "I14", f"{bookie_id} deletes the data of ledgers {kept}, which exist")

    # -- reads

    def on_read(self, ledger_id: int, entries: tuple[LedgerEntry, ...], end: int) -> None:
        """Check entries that a reader got. ``end`` is the last that it was allowed to read."""
        history = self.ledgers.get(ledger_id)
        for entry in entries:
            name = f"{ledger_id}:{entry.entry_id}"
            self.judge.require(entry.entry_id <= end, "I3", f"{name} shown beyond {end}")
            accepted = history.accepted.get(entry.entry_id) if history else None
            self.judge.require(accepted == bytes(entry.payload), "I1", f"{name} reads {bytes(entry.payload)!r}")
        if entries:
            self.on_lac(ledger_id, entries[-1].entry_id)

    def on_lac(self, ledger_id: int, lac: int) -> None:
        """Check that a LAC or entry that a reader got is confirmed, or that the ledger ends at or after it."""
        record = self.record(ledger_id)
        history = self.ledgers.get(ledger_id, LedgerHistory())
        if record is not None and record.is_closed:
            self.judge.require(lac <= record.last_entry_id, "I3", f"LAC {lac} of ledger {ledger_id} is beyond its end")
        else:
            self.judge.require(lac <= history.confirmed, "I3", f"LAC {lac} of ledger {ledger_id} is not confirmed yet")
        history.shown = max(history.shown, lac)

    def on_tail(self, name: str, ledger_id: int, entries: tuple[LedgerEntry, ...]) -> None:
        """Check that a reader that follows the topic sees no gap, and the ledgers in order."""
        for entry in entries:
            last_ledger, last_entry = self._tails.get(name, (-1, -1))
            expected = last_entry + 1 if ledger_id == last_ledger else 0
            seen = f"{name} is shown {ledger_id}:{entry.entry_id} after {last_ledger}:{last_entry}"
            self.judge.require(ledger_id >= last_ledger and entry.entry_id == expected, "I12", seen)
            self._tails[name] = ledger_id, entry.entry_id

    def on_tail_end(self, name: str, ledger_id: int, next_entry_id: int) -> None:
        """Note that a reader has finished a closed ledger, whose end must not change."""
        first = self._drained.setdefault(ledger_id, next_entry_id)
        self.judge.require(first == next_entry_id, "I5", f"{name} found another end of ledger {ledger_id}")

    # -- after every step

    def after_step(self) -> None:
        """Check what the step may have changed: what bookies noticed, and the writers of the process."""
        world = self.store.world
        if world.alarms:
            self.judge.hear(world.alarms)
        writers: Iterable[tuple[WriterCore, list[int]]]
        if world.last is None:
            writers = itertools.chain.from_iterable(self.writers.values())
        else:
            writers = self.writers.get(world.last.name, ())
        for writer, seen in writers:
            lac, lap = writer.last_add_confirmed, writer.last_add_pushed
            if lac != seen[0] or lap != seen[1]:
                holds = seen[0] <= lac <= lap and seen[1] <= lap
                self.judge.require(holds, "I2", f"ledger {writer.ledger_id}: LAC {seen[0]} -> {lac}, LAP {lap}")
                seen[0], seen[1] = lac, lap

    # -- the end of a run

    def at_end(self) -> None:
        """Check the whole topic, read from the disks as by a client. Everything is healed and closed."""
        require = self.judge.require
        topic = [info.ledger_id for info in self.store.topic().record.ledgers]
        existing = set(self.store.ledgers())
        require(existing.issuperset(topic), "I14", "a ledger of the topic was deleted")
        open_ledgers = sum(not record.is_closed for record in map(self.record, topic) if record is not None)
        require(open_ledgers <= 1, "I12", f"{open_ledgers} ledgers of the topic are open")
        for ledger_id in existing.intersection(self.ledgers):
            record, history = self.record(ledger_id), self.ledgers[ledger_id]
            assert record is not None, "a ledger that exists has a record"
            require(record.is_closed, LIVENESS, f"ledger {ledger_id} could not be closed")
            require(history.confirmed <= record.last_entry_id, "I5", f"ledger {ledger_id} lost its end")
            length = 0
            for entry_id in range(record.last_entry_id + 1):
                length += len(history.accepted[entry_id])
                self._check_stored(record, entry_id, history.accepted[entry_id], length)
            require(record.length == length, "I5", f"ledger {ledger_id} has length {record.length}, not {length}")
        self._check_order(topic)

    def holders(self, record: LedgerMetadata, entry_id: int) -> list[str]:
        """Return the bookies that metadata names for an entry and that hold it."""
        return [b for b in write_set(record, entry_id) if self.bookies[b].disk.holds(record.ledger_id, entry_id)]

    # -- parts

    def confirmed_to(self, ledger_id: int) -> int:
        """Return the last entry that was acknowledged to a client, -1 for none."""
        history = self.ledgers.get(ledger_id)
        return -1 if history is None else history.confirmed

    def record(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the ledger's record, or its last one if it was deleted."""
        records = self.store.history.get(ledger_id)
        return records[-1] if records else None

    def check_copies(self, ledger_id: int, entry_id: int) -> None:
        """Check that an acknowledged entry is on Qa disks that metadata names, less those that lost data (I1)."""
        record = self.record(ledger_id)
        assert record is not None, "a writer's ledger exists"
        named = write_set(record, entry_id)
        stored = self.holders(record, entry_id)
        key = (ledger_id, entry_id)
        lost = sum(self.bookies[b].was_lost or key in self.bookies[b].damaged for b in named if b not in stored)
        self.judge.require(
            len(stored) + lost >= record.ack_quorum,
            "I1",
            f"{ledger_id}:{entry_id} was acknowledged with {len(stored)} copies on {sorted(named)}",
        )

    def _check_stored(self, record: LedgerMetadata, entry_id: int, payload: bytes, length: int) -> None:
        name = f"{record.ledger_id}:{entry_id}"
        holders = self.holders(record, entry_id)
        self.judge.require(bool(holders), "I1", f"{name} has no copy")
        for bookie_id in holders:
            copy = self.bookies[bookie_id].disk.copy_of(record.ledger_id, entry_id)
            assert copy is not None, "a holder has a copy"
            same = copy.payload == payload and copy.length == length
            self.judge.require(same, "I1", f"{name} is {copy.payload!r} of length {copy.length} on {bookie_id}")

    def _check_order(self, topic: list[int]) -> None:
        """Check that the chain holds each broker's messages in the order in which it took them (I12)."""
        last: dict[bytes, int] = {}
        for ledger_id in topic:
            record, history = self.record(ledger_id), self.ledgers.get(ledger_id, LedgerHistory())
            for entry_id in range(record.last_entry_id + 1 if record is not None else 0):
                broker, _, number = history.accepted[entry_id].partition(b":")
                is_later = int(number) > last.get(broker, 0)
                self.judge.require(is_later, "I12", f"{ledger_id}:{entry_id} is message {number!r} out of order")
                last[broker] = int(number)

    def _has_later_messages(self, ledger_id: int) -> bool:
        """Whether a later ledger of the topic has entries, so that adds accepted now must fail (I12)."""
        later = [other for other in self.ledgers if other > ledger_id]
        return any(self.ledgers[other].confirmed >= 0 for other in later)


def write_set(record: LedgerMetadata, entry_id: int) -> list[str]:
    """Return the bookies that a record names for an entry, without the places that have none."""
    bookies = record.segment_of(entry_id).bookies
    named = (bookies[(entry_id + i) % record.ensemble_size] for i in range(record.write_quorum))
    return [bookie_id for bookie_id in named if not is_vacancy(bookie_id)]
