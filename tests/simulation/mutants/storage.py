"""Small sabotages of bookies, repairs, deletions and brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from heliograph.actors.bookie.store.fencing import Fence, FenceEffect
from heliograph.actors.ledger.effects import Effect, LedgerEntry, RepairFinished, Reply
from heliograph.actors.ledger.repair.core import RepairCore
from heliograph.actors.ledger.state import RepairPhase
from heliograph.metadata.model import LedgerMetadata, TopicRecord, Versioned
from tests.simulation import events
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster import bookie
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.broker import SimulatedBroker
from tests.simulation.cluster.disk import Image, Record, is_large
from tests.simulation.cluster.runner import Cluster
from tests.simulation.mutants.mutant import changed, mutant, replaced
from tests.simulation.workload.deletion import Trimmer, finish_round


@mutant(start=15, harm=46)
def forget_fences_on_replay() -> Iterator[None]:
    """A bookie loses its fences at a restart (I4)."""
    with patch.object(SimulatedBookie, "restore_fences", lambda self: None):
        yield


@changed(SimulatedBookie, "collect", start=184)
def forget_fences_of_deleted_ledgers(real: Callable[..., None], self: SimulatedBookie, gone: Iterable[int]) -> None:
    """A bookie drops the fence of a deleted ledger with its data, so that an old writer may write it again (I4)."""
    dropped = set(gone)
    real(self, dropped)
    for ledger_id in dropped:
        self._fences.pop(ledger_id, None)


@changed(Fence, "request", start=212)
def answer_before_the_fence_is_durable(real: Callable[..., FenceEffect], self: Fence, waiter: Any) -> FenceEffect:
    """A fencing read is answered while its fence can still be lost (I4)."""
    effect = real(self, waiter)
    if effect is FenceEffect.WRITE:
        self._waiters.clear()
        waiter[0]()
    return effect


@mutant(harm=5)
def fence_lets_writes_through() -> Iterator[None]:
    """Ordinary adds are taken after the fence (I4)."""
    with patch.object(Fence, "permits_add", lambda self, *, is_recovery: True):
        yield


@mutant(start=3)
def fence_stops_recovery_too() -> Iterator[None]:
    """A fenced bookie takes nothing from recovery and repair either: no ledger gets its copies back (liveness)."""
    with patch.object(Fence, "permits_add", lambda self, *, is_recovery: self.is_clear):
        yield


@changed(SimulatedBookie, "checkpoint", start=20, harm=117)
def move_the_mark_early(real: Callable[..., None], self: SimulatedBookie) -> None:
    """The journal is trimmed before the flush is on disk (I1)."""
    mark = self.disk.mark + len(self.disk.journal)
    real(self)
    self.disk.move_mark(mark)


@replaced(Image, "recycle")
def recycle_what_the_index_points_to(self: Image, mark: int) -> None:
    """A place in the journal is used again while the index points to the only copy of an entry in it (I1)."""
    for place in [place for place in self.places if place < mark]:
        del self.places[place]


@changed(Image, "absorb_journal")
def forget_a_ledger_of_the_journal(
    real: Callable[..., None], self: Image, records: Sequence[Record], first: int
) -> None:
    """A checkpoint leaves large entries of a ledger in the journal and does not put them into the index (I1)."""
    large = [record for record in records if record.copy is not None and is_large(record)]
    forgotten = large[0].ledger_id if large else -1
    for place, record in enumerate(records, first):
        if record not in large or record.ledger_id != forgotten:
            real(self, [record], place)


@changed(Image, "absorb_journal")
def point_to_a_wrong_place(real: Callable[..., None], self: Image, records: Sequence[Record], first: int) -> None:
    """The index points to the record behind the one of a large entry (I1)."""
    real(self, records, first)
    for key, place in self.kept.items():
        if first <= place < first + len(records) - 1:
            self.places[place] = records[place - first + 1]
            assert self.kept[key] == place, "only what is there differs"


@changed(SimulatedBookie, "_journal")
def answer_adds_before_the_sync(
    real: Callable[..., None], self: SimulatedBookie, record: Record | None, durable: Any, failed: Any, what: str = ""
) -> None:
    """A bookie acknowledges what a power cut can still take (I1)."""
    if record is not None and record.copy is not None:
        durable()
        real(self, record, lambda: None, lambda: None, what)
    else:
        real(self, record, durable, failed, what)


@changed(SimulatedBookie, "read_batch", start=58)
def serve_damaged_copies(
    real: Callable[..., tuple[Reply, list[LedgerEntry]]], self: SimulatedBookie, ledger_id: int, first: int, last: int
) -> tuple[Reply, list[LedgerEntry]]:
    """A bookie does not check the checksum of an entry that it returns (I1)."""
    copy = self.memory.index.get((ledger_id, first))
    if copy is not None and copy.is_damaged:
        return Reply.OK, [LedgerEntry(first, copy.payload[:-1] + b"?", copy.length, copy.lac)]
    return real(self, ledger_id, first, last)


@changed(SimulatedBookie, "lose_disk", start=13, harm=165)
def no_limbo_after_a_lost_disk(
    real: Callable[..., None], self: SimulatedBookie, named_in: list[LedgerMetadata], last_ledger_id: int
) -> None:
    """A bookie whose disk was lost says "no such entry" (I6)."""
    real(self, named_in, last_ledger_id)
    self.disk = Image(fences=self.disk.fences)


@changed(SimulatedBookie, "lose_disk", start=13)
def no_fence_after_a_lost_disk(
    real: Callable[..., None], self: SimulatedBookie, named_in: list[LedgerMetadata], last_ledger_id: int
) -> None:
    """A bookie whose disk was lost takes writes of the ledgers that it lost, fenced or not (I4)."""
    real(self, named_in, last_ledger_id)
    self.disk = Image(limbo=self.disk.limbo)


@changed(SimulatedBookie, "lose_disk", start=46, harm=46)
def fence_only_unclosed_ledgers_after_a_lost_disk(
    real: Callable[..., None], self: SimulatedBookie, named_in: list[LedgerMetadata], last_ledger_id: int
) -> None:
    """A bookie that lost its disk takes writes of ledgers that were closed, or that name another bookie now (I4)."""
    real(self, named_in, last_ledger_id)
    unclosed = {
        ledger.ledger_id for ledger in named_in if not ledger.is_closed and self.name in ledger.last_segment.bookies
    }
    self.disk = Image(limbo=self.disk.limbo, fences=unclosed)


@changed(SimulatedBookie, "lose_journal", start=5)
def trust_the_index_after_a_lost_journal(
    real: Callable[..., None], self: SimulatedBookie, named_in: list[LedgerMetadata], last_ledger_id: int
) -> None:
    """A bookie whose journal was lost says "no such entry" of what only the journal had (I6)."""
    limbo = set(self.disk.limbo)
    real(self, named_in, last_ledger_id)
    self.disk.limbo = limbo


@mutant(start=13)
def leave_limbo_with_holes() -> Iterator[None]:
    """A bookie that lost data says "no such entry" again once the ledger is closed, complete or not (I6)."""
    with patch.object(bookie, "is_complete", lambda *_: True):
        yield


@changed(RepairCore, "_go_on", start=121)
def name_the_newcomer_before_copying(real: Callable[..., list[Effect]], self: RepairCore, now: int) -> list[Effect]:
    """Repair changes metadata first and copies afterwards (I10)."""
    if self.steps and self.steps[0].old != self.steps[0].new:
        self.steps[0].runs = []
    return real(self, now)


@replaced(RepairCore, "_plan", start=1)
def repair_claims_success(self: RepairCore, now: int) -> list[Effect]:
    """Repair ends as complete without having copied (liveness: Qw copies come back)."""
    self.steps = []
    self.phase = RepairPhase.DONE
    return [RepairFinished(True, 0, 0, "")]


@changed(Trimmer, "shorten", start=16)
def delete_before_the_list(
    real: Callable[..., None], self: Trimmer, version: int, shorter: TopicRecord, doomed: list[int]
) -> None:
    """Ledgers are deleted first and taken off the topic's list afterwards, if at all (I14)."""
    for ledger_id in doomed:
        self.delete(ledger_id)
    real(self, version, shorter, [])


@replaced(events, "collect_garbage", start=36)
def collect_by_an_old_list(bookie: SimulatedBookie, cluster: Cluster, checkers: Checkers) -> None:
    """A bookie lists the ledgers of metadata before its own (I14)."""
    store = cluster.store
    store.ask(
        bookie,
        store.ledgers,
        lambda listed: finish_round(bookie, bookie.known_ledgers(), listed, checkers),
        lambda: None,
    )


@changed(SimulatedBroker, "_recover", start=491)
def fence_the_last_ledger_only(
    real: Callable[..., None], self: SimulatedBroker, ledger_ids: list[int], then: Any
) -> None:
    """A takeover leaves the last ledger but one open (I12)."""
    real(self, ledger_ids[-1:], then)


@changed(SimulatedBroker, "_on_created")
def write_before_the_list(real: Callable[..., None], self: SimulatedBroker, record: Any, result: Any) -> None:
    """A broker writes to a ledger that the topic does not name yet (I12)."""
    topic = self._topic
    assert topic is not None, "the topic was read first"
    if isinstance(result, int) and self.random.random() < 0.5:
        self._on_appended(Versioned(record, result), topic.record, topic.version)
    else:
        real(self, record, result)
