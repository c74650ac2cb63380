"""The writer of one ledger. It takes adds, confirms them in entry order and replaces failed bookies.

Each ledger has one thread of control, and every event is one method call. These rules keep it safe:
- An entry is confirmed when Qa bookies that the metadata names for it have acknowledged it (I1), in entry order (I2).
- During an ensemble change the LAC stands still. The new bookies are used once metadata names them (I8). Then all held
  adds are evaluated again, and only then is anything confirmed.
- An ensemble change and ``close`` are compare-and-sets that may act on an OPEN ledger only (I5, I9).
- Every accepted add ends in exactly one of AddsConfirmed and AddsFailed.
- A position that was vacant when the ledger was created counts as one whose bookie failed. So the writer fills it, by
  an ordinary ensemble change, as soon as there is a bookie for it (I20).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from heliograph.actors.errors import LedgerClosedError, LedgerError, LedgerFencedError, QuorumLostError
from heliograph.actors.ledger.effects import (
    AddRequest,
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    Effect,
    Reply,
    SendAdd,
    SendLac,
    WriterClosed,
    WriterFailed,
)
from heliograph.actors.ledger.limits import WINDOW_BYTES_LEAST, WriterLimits
from heliograph.actors.ledger.metadata_change import MetadataChange, MetadataCore
from heliograph.actors.ledger.pipeline import AddPipeline, WindowRoom
from heliograph.actors.ledger.placement.ensemble import Chooser, Replacement, replace_from
from heliograph.actors.ledger.schedule import mask_of, positions_of, schedule_of
from heliograph.actors.ledger.state import WRITER_LIFECYCLE, WriterState
from heliograph.base.errors import HeliographError, MessageTooLargeError
from heliograph.metadata.model import NO_ENTRY, LedgerMetadata, LedgerState, Versioned


class WriterCore(MetadataCore):
    """State machine of the only writer of a ledger, from the ledger's creation on."""

    def __init__(
        self,
        metadata: Versioned[LedgerMetadata],
        chooser: Chooser,
        limits: WriterLimits | None = None,
        minimum_copies: int = 0,
        room: WindowRoom | None = None,
    ) -> None:
        """Start on a ledger that was just created: OPEN and empty.

        Args:
            minimum_copies: if it is above the ack quorum, the writer fails once fewer bookies than this took each entry
                for ``quorum_wait_ms``.
            room: shared by all ledgers that the client writes; None: the ledger's own.
        """
        record = metadata.record
        assert record.state is LedgerState.OPEN, "a writer starts on the ledger that it created"
        self.ledger_id = record.ledger_id
        self.limits = limits or WriterLimits()
        self.state = WriterState.OPEN
        self.closed_reason: HeliographError | None = None
        self.ensemble_changes = 0
        self._chooser = chooser
        self._schedule = schedule_of(record.ensemble_size, record.write_quorum, record.ack_quorum)
        self._pipeline = AddPipeline(
            record.ledger_id, self._schedule, record.last_segment.bookies, last_entry_id=NO_ENTRY, length=0, room=room
        )
        self._metadata = MetadataChange(metadata, self.limits.metadata)
        self._replacing: dict[int, Replacement] = {}  # by position; not empty while an ensemble change is under way
        # When to try again to replace failed bookies. The first tick tries to fill the positions that are vacant.
        self._change_at: int | None = 0 if self._pipeline.failed else None
        self._is_starved = False  # the last try found no bookie
        self._broken_since: int | None = None  # since when the next entry cannot reach its ack quorum
        self._minimum_copies = minimum_copies if minimum_copies > record.ack_quorum else 0
        self._short_since: int | None = None  # since when fewer bookies than the minimum take entries
        self._reinstated_ms = 0  # when failed bookies were last tried again
        self._last_add_ms = 0

    # -- state

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata.current.record

    @property
    def last_add_confirmed(self) -> int:
        """Return the LAC: every entry up to it is confirmed."""
        return self._pipeline.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """Return the LAP: the last entry accepted."""
        return self._pipeline.last_add_pushed

    @property
    def length(self) -> int:
        """Return the payload bytes up to and including the last entry accepted."""
        return self._pipeline.length

    @property
    def confirmed_length(self) -> int:
        """Return the payload bytes up to and including the LAC."""
        return self._pipeline.confirmed_length

    @property
    def entries_held(self) -> int:
        """Return how many adds are held for bookies that have not answered."""
        return self._pipeline.entries_held

    @property
    def bytes_held(self) -> int:
        return self._pipeline.bytes_held

    @property
    def failed_bookies(self) -> tuple[str, ...]:
        """Return the members of the ensemble that get no entries now."""
        return tuple(self._pipeline.bookies[position] for position in positions_of(self._pipeline.failed))

    @property
    def is_quiet(self) -> bool:
        """Whether no event but an add, a change of bookies or ``close`` can make the writer act."""
        if self.state is not WriterState.OPEN:
            return not self._metadata.is_active
        pipeline = self._pipeline
        lac_told = pipeline.lac_sent >= pipeline.last_add_confirmed or not self.limits.explicit_lac_interval_ms
        return lac_told and not pipeline.entries_held and not pipeline.failed and not self._metadata.is_active

    @property
    def _is_short(self) -> bool:
        return bool(self._minimum_copies) and self._pipeline.copies_writable < self._minimum_copies

    @property
    def rests_until(self) -> int:
        """Return the time before which ``tick`` does nothing, unless an add fails or bookies change before; 0: it may
        act at once. Adds and their confirmations move the time later only."""
        pipeline, limits = self._pipeline, self.limits
        has_trouble = pipeline.has_holes or self._broken_since is not None or self._short_since is not None
        if self.state is not WriterState.OPEN or has_trouble or self._metadata.is_active:
            return 0
        told = self._last_add_ms + limits.explicit_lac_interval_ms
        if pipeline.failed:  # an idle ledger only waits for a bookie
            is_told = pipeline.lac_sent >= pipeline.last_add_confirmed or not limits.explicit_lac_interval_ms
            rests = self._is_starved and is_told and not pipeline.entries_held
            return self._change_at or 0 if rests else 0
        head = pipeline.head
        return told if head is None else min(told, head.accepted_ms + limits.add_timeout_ms)

    def has_room(self, payload_bytes: int) -> bool:
        """Whether an add of that size fits the window (I15). A confirmed add counts until all Qw bookies answered."""
        held = self._pipeline.bytes_held
        return self._pipeline.entries_held < self.limits.in_flight_entries_max and (
            held == 0 or held + payload_bytes <= self._window_bytes()
        )

    def _window_bytes(self) -> int:
        """Return how many bytes of adds the ledger may hold now: what its client has left, but at least the least."""
        return min(self.limits.in_flight_bytes_max, max(self._pipeline.room.left, WINDOW_BYTES_LEAST))

    def check_size(self, payload: bytes | memoryview) -> None:
        """Raise MessageTooLargeError if the payload is larger than an entry may be."""
        limit = self.limits.entry_bytes_max
        if len(payload) > limit:
            raise MessageTooLargeError(
                f"an entry of {len(payload)} bytes is above the limit of {limit} bytes: split it",
                field="payload",
                limit=f"{limit} bytes",
            )

    def why_ended(self) -> HeliographError:
        """Return the error for an add made after the writer ended."""
        if self.closed_reason is not None:
            return type(self.closed_reason)(str(self.closed_reason))
        return LedgerClosedError(f"ledger {self.ledger_id} is closed: go on in a new one")

    # -- events

    def add(self, payload: bytes | memoryview, now: int) -> SendAdd:
        """Accept an add that fits the window. The returned effect has its entry id.

        Raises:
            The errors of ``offer``.
        """
        effect = self.offer(payload, now)
        assert effect is not None, "the owner keeps back adds that do not fit the window"  # I15
        return effect

    def offer(self, payload: bytes | memoryview, now: int) -> SendAdd | None:
        """Accept an add if it fits the window (I15); else return None, and nothing was accepted.

        Raises:
            MessageTooLargeError: nothing was accepted.
            LedgerClosedError, LedgerFencedError, QuorumLostError, ...: the writer has ended; nothing was accepted.
        """
        if self.state is not WriterState.OPEN:
            raise self.why_ended()
        size, limits, pipeline = len(payload), self.limits, self._pipeline
        if size > limits.entry_bytes_max:
            self.check_size(payload)
        held, window = pipeline.bytes_held, limits.in_flight_bytes_max
        if pipeline.room.left < window:  # seldom: the common case calls nothing
            window = self._window_bytes()
        if len(pipeline.held) >= limits.in_flight_entries_max or (held and held + size > window):
            return None
        self._last_add_ms = now
        return pipeline.add_entry(payload, pipeline.length + size, now)

    def on_add_answer(self, entry_id: int, position: int, epoch: int, reply: Reply, now: int) -> list[Effect]:
        """Take the answer of a bookie to a SendAdd of ``epoch``, or the lack of one."""
        if reply is not Reply.OK:
            return self._on_add_failure(entry_id, position, epoch, reply, now)
        if self._pipeline.on_ack(entry_id, position, epoch) and not self._replacing:
            return [*self._confirm()]
        return []

    def on_adds_stored(self, bookie_id: str, requests: Sequence[AddRequest]) -> list[AddsConfirmed]:
        """Take what ``on_add_answer`` would take of OK answers of that bookie to these requests, and confirm once."""
        pipeline = self._pipeline
        if pipeline.on_acks(bookie_id, requests) and not self._replacing:
            self._broken_since = None
            return pipeline.confirm()
        return []

    def on_bookies_changed(self, now: int) -> list[Effect]:
        """Try again at once to replace failed bookies: bookies came or went."""
        if self.state is not WriterState.OPEN or self._replacing or not self._pipeline.failed:
            return []
        return self._begin_change(now, may_reinstate=True)

    def tick(self, now: int) -> list[Effect]:
        """Act on the passing of time. Call at least every 100 ms while ``is_quiet`` is false."""
        pipeline = self._pipeline
        is_at_rest = not pipeline.entries_held and not pipeline.has_trouble
        if self.state is WriterState.OPEN and is_at_rest and not self._metadata.is_active:
            self._broken_since = None  # most ticks end here: of a ledger whose LAC is not told yet
            return self._tell_lac(now)
        effects: list[Effect] = []
        if self._metadata.is_active:
            effects = self._metadata.tick(now) + self._after_metadata(now)
        if self.state is not WriterState.OPEN:
            return effects
        effects += self._check_patience(now)
        if self.state is not WriterState.OPEN:
            return effects
        if self._is_change_due(now):
            effects += self._begin_change(now, may_reinstate=True)
        return effects + self._tell_lac(now) + self._pipeline.take_holes()

    def is_witnessed(self, bookies: Collection[str]) -> bool:
        """Return whether these bookies hold an ack quorum of the ensemble: if none of them is fenced, no recovery has
        fenced the ledger so that it may go on."""
        answered = mask_of(p for p, bookie_id in enumerate(self._pipeline.bookies) if bookie_id in bookies)
        return any((mask & answered).bit_count() >= self._schedule.ack_quorum for mask in self._schedule.masks)

    def on_fenced(self) -> list[Effect]:
        """Take the word of a bookie that the ledger is fenced, in answer to a question of the owner."""
        if self.state is not WriterState.OPEN:
            return []
        return self._fail(LedgerFencedError(f"ledger {self.ledger_id} was taken over by another client"))

    def close(self, now: int) -> list[Effect]:
        """Close the ledger at the LAC. Idempotent; adds without an outcome fail with LedgerClosedError.

        Ends in WriterClosed or CloseFailed. Entries above the LAC may be stored on bookies; nobody reads them.
        """
        if self.state is WriterState.CLOSED:
            return [WriterClosed(self.metadata)]
        if self.state is WriterState.CLOSING:
            return []
        adds_wait = (
            self.state is WriterState.OPEN and self._pipeline.has_unconfirmed
        )  # those of a failed writer failed with it
        self._replacing = {}
        self.state = WRITER_LIFECYCLE.move(self.state, WriterState.CLOSING)
        effects: list[Effect] = []
        if adds_wait:
            error = LedgerClosedError(f"ledger {self.ledger_id} was closed before the add was confirmed")
            effects += self._fail_adds(error)
        self._pipeline.drain()
        effects += self._pipeline.take_holes()
        return effects + self._metadata.begin(self._closed, now) + self._after_metadata(now)

    def abort(self, error: HeliographError) -> list[Effect]:
        """Send nothing more, and fail adds without an outcome with ``error``: the owner stops."""
        return self._fail(error) if self.state is WriterState.OPEN else []

    def _confirm(self) -> list[AddsConfirmed]:
        confirmed = self._pipeline.confirm()
        if confirmed:
            self._broken_since = None
        return confirmed

    # -- failed bookies

    def _on_add_failure(self, entry_id: int, position: int, epoch: int, reply: Reply, now: int) -> list[Effect]:
        pipeline = self._pipeline
        if self.state is not WriterState.OPEN or not pipeline.awaits(entry_id, position, epoch):
            return []
        if reply is Reply.FENCED:
            return self._fail(LedgerFencedError(f"ledger {self.ledger_id} was taken over by another client"))
        if reply is Reply.UNAUTHORIZED:
            return self._fail(LedgerError(f"bookie {pipeline.bookies[position]} refuses this client's credentials"))
        pipeline.on_failure(entry_id, position)
        if not pipeline.failed >> position & 1:
            pipeline.mark_failed(position)
            self._chooser.note_failure(pipeline.bookies[position], now)
            delay = 0 if reply is Reply.READ_ONLY else self.limits.ensemble_change_delay_ms
            at = now + delay
            self._change_at = at if self._change_at is None or self._is_starved else min(at, self._change_at)
            self._is_starved = False
        if self._broken_since is None and pipeline.is_head_broken():
            self._broken_since = now
        if self._short_since is None and self._is_short:
            self._short_since = now
        return self._consider_change(now)

    def _consider_change(self, now: int) -> list[Effect]:
        return self._begin_change(now, may_reinstate=False) if self._is_change_due(now) else []

    def _is_change_due(self, now: int) -> bool:
        """Whether the delay of a failed bookie is over, or the next entry cannot be confirmed without a change."""
        if self._replacing or self._change_at is None or not self._pipeline.failed:
            return False
        return now >= self._change_at or (not self._is_starved and self._pipeline.is_head_broken())

    def _begin_change(self, now: int, may_reinstate: bool) -> list[Effect]:
        """Replace as many failed bookies as there are others for. The LAC stands still until the change has ended."""
        pipeline = self._pipeline
        failed = positions_of(pipeline.failed)
        chosen = self._chooser.choose_replacements(pipeline.bookies, failed, now)
        if chosen:
            self._change_at = None
            self._is_starved = False
            self._replacing = {p: Replacement(pipeline.bookies[p], new) for p, new in chosen.items()}
            return self._metadata.begin(self._with_replacements, now) + self._after_metadata(now)
        self._change_at = now + self.limits.degraded_retry_ms
        self._is_starved = True
        back = [p for p in failed if self._chooser.is_available(pipeline.bookies[p])] if may_reinstate else []
        if not back:
            return []
        # Metadata names these bookies already, so they may be used again. Repair brings what they missed.
        self._reinstated_ms = now
        return pipeline.install(pipeline.bookies, back) + self._confirm()

    def _with_replacements(self, record: LedgerMetadata) -> LedgerMetadata | None:
        """Return the record after the ensemble change: of an OPEN ledger, where positions name failed bookies still."""
        if record.state is not LedgerState.OPEN:  # I9
            raise LedgerFencedError(f"ledger {self.ledger_id} is {record.state.value}: another client took it over")
        return replace_from(record, self._pipeline.last_add_confirmed + 1, self._replacing)

    def _install(self, record: LedgerMetadata, now: int) -> list[Effect]:
        """Use the new segment, which is stored: evaluate every held add again, and confirm once at the end."""
        pipeline = self._pipeline
        segment = record.last_segment
        tried = set(self._replacing)
        changed = [p for p, bookie_id in enumerate(segment.bookies) if bookie_id != pipeline.bookies[p]]
        assert not changed or segment.first_entry_id == pipeline.last_add_confirmed + 1, "the LAC stood still"  # I8
        self._replacing = {}
        self.ensemble_changes += 1
        self._broken_since = None
        if not self._is_short:
            self._short_since = None
        effects = pipeline.take_holes() + pipeline.install(segment.bookies, changed)
        left = positions_of(pipeline.failed)
        if left:
            self._is_starved = all(p in tried for p in left)
            self._change_at = now + self.limits.degraded_retry_ms if self._is_starved else now
            effects += self._consider_change(now)
        if not self._replacing and self.state is WriterState.OPEN:
            effects += self._confirm()
        return effects

    # -- ends

    def _after_metadata(self, now: int) -> list[Effect]:
        outcome = self._metadata.outcome
        if outcome is None:
            return []
        self._metadata.outcome = None
        if self.state is WriterState.CLOSING:
            return self._closing_ended(outcome)
        if self.state is not WriterState.OPEN:
            return []
        if isinstance(outcome, HeliographError):
            return self._fail(outcome)
        return self._install(outcome.record, now)

    def _closed(self, record: LedgerMetadata) -> LedgerMetadata | None:
        """Return the record that ``close`` stores. A writer closes an OPEN ledger only."""
        last, length = self._pipeline.last_add_confirmed, self._pipeline.confirmed_length
        if record.state is LedgerState.OPEN:  # I5
            return replace(record, state=LedgerState.CLOSED, last_entry_id=last, length=length)
        if record.state is LedgerState.CLOSED and (record.last_entry_id, record.length) == (last, length):
            return None
        raise LedgerFencedError(
            f"ledger {self.ledger_id} is {record.state.value} at entry {record.last_entry_id}, and its writer would "
            f"close it at entry {last}: another client took it over"
        )

    def _closing_ended(self, outcome: Versioned[LedgerMetadata] | HeliographError) -> list[Effect]:
        if isinstance(outcome, HeliographError):
            self.state = WRITER_LIFECYCLE.move(self.state, WriterState.FAILED)
            self.closed_reason = self.closed_reason or outcome
            return [CloseFailed(outcome)]
        self.state = WRITER_LIFECYCLE.move(self.state, WriterState.CLOSED)
        return [WriterClosed(outcome.record)]

    def _fail(self, error: HeliographError) -> list[Effect]:
        """Take no more adds, and fail those without an outcome. Whether these survive is for a recovery to decide."""
        assert self.state is WriterState.OPEN, "a writer fails once"
        self.state = WRITER_LIFECYCLE.move(self.state, WriterState.FAILED)
        self.closed_reason = error
        self._replacing = {}
        self._metadata.abandon()
        effects: list[Effect] = []
        if self._pipeline.has_unconfirmed:
            effects += self._fail_adds(error)
        self._pipeline.drain()
        return [*effects, *self._pipeline.take_holes(), WriterFailed(error)]

    def _fail_adds(self, error: HeliographError) -> list[Effect]:
        return [AddsFailed(self._pipeline.last_add_confirmed + 1, self._pipeline.last_add_pushed, error)]

    def _check_patience(self, now: int) -> list[Effect]:
        """Fail the writer when the next entry has waited too long, for enough bookies or at all, or copies are too few.

        A failed bookie that is tried again does not reset the times; a confirmation or a replacement does.
        """
        if self._short_since is not None:
            if not self._is_short and now - self._reinstated_ms > self.limits.degraded_retry_ms:
                self._short_since = None
            elif now - self._short_since >= self.limits.quorum_wait_ms:
                return self._fail(QuorumLostError(f"fewer than {self._minimum_copies} bookies take entries"))
        head = self._pipeline.head
        if head is None:
            self._broken_since = None
            return []
        if self._broken_since is None and self._pipeline.is_head_broken():  # from its acceptance on
            self._broken_since = now
        if now - head.accepted_ms >= self.limits.add_timeout_ms:
            return self._fail(QuorumLostError(f"entry {head.entry_id} had no ack quorum in time"))
        if self._broken_since is None or now - self._broken_since < self.limits.quorum_wait_ms or self._replacing:
            return []
        return self._fail(QuorumLostError(f"entry {head.entry_id} has no ack quorum, and there are no other bookies"))

    def _tell_lac(self, now: int) -> list[Effect]:
        pipeline, interval = self._pipeline, self.limits.explicit_lac_interval_ms
        if not interval or pipeline.lac_sent >= pipeline.last_add_confirmed or now - self._last_add_ms < interval:
            return []
        pipeline.lac_sent = pipeline.last_add_confirmed
        failed = pipeline.failed
        told = tuple(bookie_id for p, bookie_id in enumerate(pipeline.bookies) if not failed >> p & 1)
        return [SendLac(self.ledger_id, pipeline.last_add_confirmed, told)]
