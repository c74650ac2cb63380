"""Small sabotages of the writer: its quorums, its ensemble changes, and its compare-and-sets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from heliograph.actors.ledger.effects import AddRequest, AddsConfirmed, Effect, Reply, SendAdd
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.model import LedgerMetadata, LedgerState
from heliograph.metadata.store import ANY_VERSION
from tests.simulation.cluster.store import SimulatedStore
from tests.simulation.mutants.mutant import changed, mutant


@contextmanager
def sent_lac(told: Callable[[AddPipeline, int], int]) -> Iterator[None]:
    """Have entries carry another LAC: what ``told`` returns of their pipeline and the right one."""

    def add_entry(self: AddPipeline, payload: bytes, length: int, now: int) -> SendAdd:
        effect = real_add(self, payload, length, now)
        return replace(effect, last_add_confirmed=told(self, effect.last_add_confirmed))

    def send_again(self: AddPipeline, add: Any, changed: int) -> SendAdd:
        effect = real_again(self, add, changed)
        return replace(effect, last_add_confirmed=told(self, effect.last_add_confirmed))

    real_add, real_again = AddPipeline.add_entry, AddPipeline._send_again
    with patch.object(AddPipeline, "add_entry", add_entry), patch.object(AddPipeline, "_send_again", send_again):
        yield


@mutant()
def ack_at_qa_minus_one() -> Iterator[None]:
    """The writer confirms with one copy too few (I1)."""

    def confirm(self: AddPipeline) -> list[Effect]:
        needed = max(1, self.schedule.ack_quorum - 1)
        entry_id = self.last_add_confirmed + 1
        while (add := self.held.get(entry_id)) is not None and add.acked.bit_count() >= needed:
            self.confirmed_length = add.length
            if not add.outstanding:
                self._release(add)
            entry_id += 1
        if entry_id - 1 == self.last_add_confirmed:
            return []
        self.last_add_confirmed = entry_id - 1
        return [AddsConfirmed(entry_id - 1)]

    def on_acks(self: AddPipeline, bookie_id: str, requests: Sequence[AddRequest]) -> bool:
        real(self, bookie_id, requests)
        return True

    real = AddPipeline.on_acks
    with patch.object(AddPipeline, "confirm", confirm), patch.object(AddPipeline, "on_acks", on_acks):
        yield


@mutant()
def confirm_past_a_gap() -> Iterator[None]:
    """An entry with its ack quorum is confirmed although one before it has none (I1, I2)."""

    def confirm(self: AddPipeline) -> list[Effect]:
        ready = [e for e, add in self.held.items() if add.acked.bit_count() >= self.schedule.ack_quorum]
        if max(ready, default=-1) <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = max(ready)
        self.confirmed_length = self.held[self.last_add_confirmed].length
        return [AddsConfirmed(self.last_add_confirmed)]

    def on_acks(self: AddPipeline, bookie_id: str, requests: Sequence[AddRequest]) -> bool:
        real(self, bookie_id, requests)
        return True

    real = AddPipeline.on_acks
    with patch.object(AddPipeline, "confirm", confirm), patch.object(AddPipeline, "on_acks", on_acks):
        yield


@mutant()
def forget_outcomes() -> Iterator[None]:
    """A writer that ends does not report the outcome of adds under way (I2)."""
    with patch.object(WriterCore, "_fail_adds", lambda self, error: []):
        yield


@mutant()
def tell_an_unconfirmed_lac() -> Iterator[None]:
    """Entries carry the LAP as their LAC, so that readers see entries that may vanish (I3)."""
    with sent_lac(lambda pipeline, lac: lac if pipeline._recovery else pipeline.last_add_pushed):
        yield


@changed(WriterCore, "_begin_change")
def use_segment_before_it_is_persisted(
    real: Callable[..., list[Effect]], self: WriterCore, now: int, may_reinstate: bool
) -> list[Effect]:
    """The writer sends to new bookies while metadata does not name them yet (I8)."""
    effects = real(self, now, may_reinstate)
    if self._replacing:
        bookies = list(self._pipeline.bookies)
        for position, replacement in self._replacing.items():
            bookies[position] = replacement.new
        effects += self._pipeline.install(bookies, list(self._replacing))
    return effects


@changed(WriterCore, "_closed", start=7)
def close_over_recovery(
    real: Callable[..., LedgerMetadata | None], self: WriterCore, record: LedgerMetadata
) -> LedgerMetadata | None:
    """The writer closes a ledger that another client is recovering (I9)."""
    if record.state is LedgerState.IN_RECOVERY:
        record = replace(record, state=LedgerState.OPEN)
    return real(self, record)


@changed(WriterCore, "_with_replacements", start=10)
def change_over_recovery(
    real: Callable[..., LedgerMetadata | None], self: WriterCore, record: LedgerMetadata
) -> LedgerMetadata | None:
    """The writer changes the ensemble of a ledger that another client is recovering (I9)."""
    if record.state is LedgerState.IN_RECOVERY:
        return real(self, replace(record, state=LedgerState.OPEN))
    return real(self, record)


@mutant(start=1)
def write_metadata_blindly() -> Iterator[None]:
    """A change of a ledger's record does not compare versions, and undoes other changes (I5, I9)."""

    def apply(self: SimulatedStore, operation: Any) -> Any:
        if getattr(operation, "version", -1) >= 0 and "ledgers/" in operation.path:
            operation = replace(operation, version=ANY_VERSION)
        return real_apply(self, operation)

    real_apply = SimulatedStore._apply
    with patch.object(SimulatedStore, "_apply", apply):
        yield


@changed(WriterCore, "on_add_answer", start=4)
def confirm_during_ensemble_change(
    real: Callable[..., list[Effect]],
    self: WriterCore,
    entry_id: int,
    position: int,
    epoch: int,
    reply: Reply,
    now: int,
) -> list[Effect]:
    """Acknowledgements complete adds while a change is under way (I8)."""
    if reply is Reply.OK and self._pipeline.on_ack(entry_id, position, epoch):
        return [*self._pipeline.confirm()]
    return real(self, entry_id, position, epoch, reply, now) if reply is not Reply.OK else []


@mutant(start=20170)
def accept_stale_epochs() -> Iterator[None]:
    """Replies to requests of an older ensemble count (I1)."""

    def send_again(self: AddPipeline, add: Any, changed: int) -> Any:
        return replace(real(self, add, changed), epoch=1 << 30)

    def install(self: AddPipeline, bookies: Sequence[str], positions: Collection[int]) -> list[Effect]:
        effects = real_install(self, bookies, positions)
        self._installed = [0] * len(self._installed)
        return effects

    real = AddPipeline._send_again
    real_install = AddPipeline.install
    with patch.object(AddPipeline, "_send_again", send_again), patch.object(AddPipeline, "install", install):
        yield


@changed(AddPipeline, "_send_again", start=1)
def keep_acks_of_replaced_bookies(real: Callable[..., Any], self: AddPipeline, add: Any, changed: int) -> Any:
    """After a change the old bookie's acknowledgement still counts for its place (I1)."""
    acked = add.acked
    effect = real(self, add, changed)
    add.acked = acked
    return effect
