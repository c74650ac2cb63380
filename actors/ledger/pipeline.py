"""Adds under way: which bookies acknowledged them, and the order in which they are confirmed.

Writer and recovery share this. An add is held from its acceptance until it is confirmed and every bookie of its write
set has answered or was abandoned, so that held adds are those that take memory (I15). A reply carries the epoch of its
request. A position has the epoch of its last installation, and replies to older requests are ignored. So a bookie that
leaves the ensemble and comes back cannot acknowledge, by an old answer, an entry that it was not sent again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heliograph.actors.ledger.effects import AddRequest, AddsConfirmed, CopiesMissing, Effect, SendAdd, Target
from heliograph.actors.ledger.limits import WINDOWS_BYTES_MAX
from heliograph.actors.ledger.schedule import WriteSchedule, mask_of, positions_of, vacancies_of

_NOBODY: frozenset[str] = frozenset()  # shared: a set of its own would cost each ledger 216 bytes


class PendingAdd:
    """One held add. ``acked`` and ``outstanding`` are masks of positions; ``length`` is cumulative, in bytes."""

    __slots__ = ("accepted_ms", "acked", "entry_id", "length", "outstanding", "payload")

    def __init__(self, entry_id: int, payload: bytes | memoryview, length: int, outstanding: int, now: int) -> None:
        self.entry_id = entry_id
        self.payload = payload
        self.length = length
        self.acked = 0
        self.outstanding = outstanding
        self.accepted_ms = now


@dataclass(slots=True)
class WindowRoom:
    """The room for the held adds of all ledgers that a client writes (I15).

    A window is at most what is left, so ledgers behind a slow bookie leave to another one as much as each of them has.
    """

    left: int = WINDOWS_BYTES_MAX  # below 0 only by ledgers that hold their least, or a single add, each


class AddPipeline:
    """The held adds of one ledger, in entry order. Its owner decides what happens to bookies that fail."""

    def __init__(
        self,
        ledger_id: int,
        schedule: WriteSchedule,
        bookies: Sequence[str],
        *,
        last_entry_id: int,
        length: int,
        recovery: bool = False,
        room: WindowRoom | None = None,
    ) -> None:
        assert len(bookies) == schedule.ensemble_size, "an ensemble has E bookies"
        self.ledger_id = ledger_id
        self.schedule = schedule
        self.bookies = list(bookies)
        self.epoch = 0
        self.failed = vacancies_of(bookies)  # mask of positions that get no new entries
        self.last_add_pushed = last_entry_id  # LAP
        self.last_add_confirmed = last_entry_id  # LAC <= LAP (I2)
        self.length = length
        self.confirmed_length = length
        self.bytes_held = 0
        self.room = room or WindowRoom()  # which ``bytes_held`` are taken from
        self.lac_sent = last_entry_id  # the greatest LAC that went out with an entry
        self._frozen_lac = last_entry_id if recovery else None  # a losing recovery leaves no dirty reads (I3)
        self._recovery = recovery
        self._installed = [0] * schedule.ensemble_size  # epoch of each position
        self.held: dict[int, PendingAdd] = {}  # by entry id, in entry order
        self._holes: dict[str, int] = {}  # bookie -> first confirmed entry that it lacks, not yet reported
        self._reported = _NOBODY
        self._targets: tuple[tuple[Target, ...], ...] = ()
        self._sent_masks: tuple[int, ...] = ()
        self._set_targets()

    @property
    def entries_held(self) -> int:
        return len(self.held)

    @property
    def has_unconfirmed(self) -> bool:
        return self.last_add_pushed > self.last_add_confirmed

    @property
    def head(self) -> PendingAdd | None:
        """Return the add to be confirmed next, if there is one."""
        return self.held.get(self.last_add_confirmed + 1)

    @property
    def copies_writable(self) -> int:
        """Return how many bookies take each new entry, at the least."""
        usable = ~self.failed
        return min((mask & usable).bit_count() for mask in self.schedule.masks)

    @property
    def has_holes(self) -> bool:
        return bool(self._holes)

    @property
    def has_trouble(self) -> bool:
        return bool(self.failed or self._holes)

    def add_entry(self, payload: bytes | memoryview, length: int, now: int) -> SendAdd:
        """Take the next add, and give it its id.

        Args:
            length: payload bytes of the ledger with this entry.
        """
        entry_id = self.last_add_pushed = self.last_add_pushed + 1
        size = len(payload)
        self.length = length
        self.bytes_held += size
        self.room.left -= size
        stripe = entry_id % self.schedule.ensemble_size
        self.held[entry_id] = PendingAdd(entry_id, payload, length, self._sent_masks[stripe], now)
        lac = self._frozen_lac
        if lac is None:
            lac = self.lac_sent = self.last_add_confirmed
        return SendAdd(
            self.ledger_id, entry_id, self.epoch, lac, length, payload, self._targets[stripe], self._recovery
        )

    def awaits(self, entry_id: int, position: int, epoch: int) -> bool:
        """Whether an answer to that request still counts."""
        add = self.held.get(entry_id)
        return add is not None and epoch >= self._installed[position] and bool(add.outstanding >> position & 1)

    def on_ack(self, entry_id: int, position: int, epoch: int) -> bool:
        """Record an acknowledgement. Return whether the head became ready to be confirmed."""
        bookie_id = self.bookies[position]
        return self.on_acks(bookie_id, ((entry_id, epoch, {bookie_id: position}),))

    def on_acks(self, bookie_id: str, requests: Iterable[AddRequest]) -> bool:
        """Record that a bookie acknowledged some requests. Return whether the head became ready to be confirmed."""
        held, installed, is_ready = self.held, self._installed, False
        for entry_id, epoch, positions in requests:
            position = positions[bookie_id]
            add, place = held.get(entry_id), 1 << position
            if add is None or epoch < installed[position] or not add.outstanding & place:  # as in ``awaits``
                continue
            add.outstanding ^= place
            add.acked |= place  # also after the ack quorum: a change may revoke another one
            if entry_id > self.last_add_confirmed:
                is_head = entry_id == self.last_add_confirmed + 1
                is_ready |= is_head and add.acked.bit_count() >= self.schedule.ack_quorum
            elif not add.outstanding:
                self._release(add)
        return is_ready

    def on_failure(self, entry_id: int, position: int) -> None:
        """Record that the position does not hold the entry. The caller has asked ``awaits``."""
        add = self.held[entry_id]
        add.outstanding &= ~(1 << position)
        if entry_id <= self.last_add_confirmed and not add.outstanding:
            self._release(add)

    def mark_failed(self, position: int) -> None:
        """Send no new entries to the position until it is installed again."""
        self.failed |= 1 << position
        self._set_targets()

    def confirm(self) -> list[AddsConfirmed]:
        """Confirm, in entry order, the adds with an ack quorum. It is not called during an ensemble change (I8)."""
        held = self.held
        ack_quorum = self.schedule.ack_quorum
        entry_id = self.last_add_confirmed + 1
        add = held.get(entry_id)
        if add is None or add.acked.bit_count() < ack_quorum:
            return []
        while add is not None and add.acked.bit_count() >= ack_quorum:  # I1
            self.confirmed_length = add.length
            if not add.outstanding:
                self._release(add)
            entry_id += 1
            add = held.get(entry_id)
        assert self.last_add_confirmed < entry_id - 1 <= self.last_add_pushed, "LAC grows and stays below LAP"  # I2
        self.last_add_confirmed = entry_id - 1
        return [AddsConfirmed(entry_id - 1)]

    def install(self, bookies: Sequence[str], positions: Iterable[int]) -> list[Effect]:
        """Use ``bookies`` from LAC + 1 on. ``positions`` have another bookie, or the same one starts over.

        Every unconfirmed add is evaluated again: acknowledgements of changed positions are revoked, and the entry is
        sent there. Confirmed adds stay in the older segment, and copies missing there are a task for repair. Nothing
        is confirmed here; the owner does that once, afterwards.
        """
        changed = mask_of(positions)
        self.epoch += 1
        self._reported = _NOBODY
        for entry_id in [e for e in self.held if e <= self.last_add_confirmed]:
            self._abandon(self.held[entry_id], changed)
        self.bookies = list(bookies)
        assert not changed & vacancies_of(bookies), "a position is installed with a bookie"  # I1
        self.failed &= ~changed
        for position in positions_of(changed):
            self._installed[position] = self.epoch
        self._set_targets()
        return [self._send_again(add, changed) for add in self.held.values() if self._is_sent_again(add, changed)]

    def drain(self) -> None:
        """Forget every held add. The owner reports the outcome of unconfirmed ones.

        A bookie that has not answered for a confirmed add may lack it, and counts as a hole.
        """
        for add in [self.held[e] for e in self.held if e <= self.last_add_confirmed]:
            self._release(add)
        self.held.clear()
        self.room.left += self.bytes_held
        self.bytes_held = 0

    def take_holes(self) -> list[Effect]:
        """Return reports of bookies that lack confirmed entries, once for each bookie and epoch."""
        if not self._holes:
            return []
        reports: list[Effect] = [
            CopiesMissing(self.ledger_id, bookie_id, entry_id) for bookie_id, entry_id in self._holes.items()
        ]
        self._reported |= self._holes.keys()
        self._holes.clear()
        return reports

    def is_head_broken(self) -> bool:
        """Whether the next add cannot be confirmed while the failed positions stay failed."""
        head = self.head
        if head is None:
            return False
        hopeless = self.failed & ~head.acked & ~head.outstanding
        return self.schedule.is_broken(head.entry_id, hopeless)

    def _is_sent_again(self, add: PendingAdd, changed: int) -> bool:
        return add.entry_id > self.last_add_confirmed and bool(self.schedule.mask(add.entry_id) & changed)

    def _send_again(self, add: PendingAdd, changed: int) -> SendAdd:
        again = self.schedule.mask(add.entry_id) & changed
        add.acked &= ~again
        add.outstanding |= again
        targets = tuple((p, self.bookies[p]) for p in self.schedule.positions(add.entry_id) if again >> p & 1)
        lac = self._frozen_lac
        if lac is None:
            lac = self.lac_sent = self.last_add_confirmed
        return SendAdd(self.ledger_id, add.entry_id, self.epoch, lac, add.length, add.payload, targets, self._recovery)

    def _abandon(self, add: PendingAdd, changed: int) -> None:
        """Expect no answer of replaced bookies. A missing copy of a confirmed add is their hole, not the new ones'."""
        add.outstanding &= ~changed
        self._note_holes(add, changed)
        add.acked |= changed  # settled
        if not add.outstanding:
            self._release(add)

    def _release(self, add: PendingAdd) -> None:
        del self.held[add.entry_id]
        self.bytes_held -= len(add.payload)
        self.room.left += len(add.payload)
        if add.acked != self.schedule.full_mask:
            self._note_holes(add, self.schedule.full_mask)

    def _note_holes(self, add: PendingAdd, among: int) -> None:
        missing = self.schedule.mask(add.entry_id) & ~add.acked & among
        if missing:
            for position in positions_of(missing):
                bookie_id = self.bookies[position]
                if bookie_id not in self._reported:
                    self._holes.setdefault(bookie_id, add.entry_id)

    def _set_targets(self) -> None:
        """Compute, once for each stripe, the positions that get its entries."""
        self._sent_masks, self._targets = _targets_of(self.schedule, tuple(self.bookies), self.failed)


@functools.lru_cache(maxsize=4_096)  # I15
def _targets_of(
    schedule: WriteSchedule, bookies: tuple[str, ...], failed: int
) -> tuple[tuple[int, ...], tuple[tuple[Target, ...], ...]]:
    """Return the mask and the targets of each stripe, which the ledgers of an ensemble share."""
    usable = ~failed
    masks = tuple(mask & usable for mask in schedule.masks)
    return masks, tuple(tuple((p, bookies[p]) for p in positions if usable >> p & 1) for positions in schedule.sets)
