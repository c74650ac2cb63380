"""The handle of a ledger that this process created and writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from heliograph.actors.errors import BookieError, TooManyAddsError
from heliograph.actors.ledger.driver.context import NO_BODY, DriverContext
from heliograph.actors.ledger.driver.metadata_runner import MetadataRunner
from heliograph.actors.ledger.driver.underreplication import mark_underreplicated
from heliograph.actors.ledger.effects import (
    AddRequest,
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    CopiesMissing,
    SendAdd,
    WriterClosed,
    WriterFailed,
)
from heliograph.actors.ledger.state import WriterState
from heliograph.actors.ledger.writer import WriterCore
from heliograph.actors.wire.entry import encode_entry_head
from heliograph.actors.wire.messages import Answer
from heliograph.actors.wire.ranges import OutgoingEntry
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata, Versioned

OnAdded = Callable[[Any, int, HeliographError | None], None]  # the caller's context, entry id, error

CLOSE_PATIENCE_MS = 10_000  # how long a close waits for adds without an outcome
CLOSE_COPIES_PATIENCE_MS = 500  # and for the last copies of confirmed ones; a bookie silent until then may lack them


class LedgerWriter(MetadataRunner):
    """The only writer of a ledger. Adds are confirmed in the order in which they were made (I2).

    An add that does not fit the window of the core waits in a bounded queue here (I15).
    """

    core: WriterCore

    def __init__(self, context: DriverContext, metadata: Versioned[LedgerMetadata]) -> None:
        super().__init__(context, WriterCore(metadata, context.chooser_for(metadata.record), context.config.writer))
        self.ledger_id = metadata.record.ledger_id
        self.on_failed: Callable[[HeliographError], None] | None = None
        self._outcomes: deque[asyncio.Future[int] | tuple[OnAdded, Any]] = deque()  # of sent adds, in order
        self._next_outcome = 0  # entry id of the first outcome
        self._queued: deque[tuple[bytes | memoryview, asyncio.Future[int] | tuple[OnAdded, Any]]] = deque()
        self._queued_bytes = 0
        self._closing: asyncio.Future[LedgerMetadata] | None = None
        self._rests_until = 0  # time of the core before which its ticks are left out
        self._progress = asyncio.Event()  # set at each event that a close may wait for
        self._bookies_lacking: set[str] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        """Return the ledger's record as last seen in the store."""
        return self.core.metadata

    @property
    def last_add_confirmed(self) -> int:
        """Return the LAC: every entry up to it is confirmed."""
        return self.core.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """Return the LAP: the last entry that got an id."""
        return self.core.last_add_pushed

    @property
    def length(self) -> int:
        """Return the payload bytes up to and including ``last_add_pushed``."""
        return self.core.length

    @property
    def closed_reason(self) -> HeliographError | None:
        """Return why the writer ended by itself, None while it is open or if its owner closed it."""
        return self.core.closed_reason

    @property
    def is_open(self) -> bool:
        """Whether the writer takes adds."""
        return self.core.state is WriterState.OPEN

    @property
    def has_ended(self) -> bool:
        """Whether the writer is neither open nor being closed."""
        return self.core.state in (WriterState.CLOSED, WriterState.FAILED)

    @property
    def bytes_in_flight(self) -> int:
        """Return the payload bytes held: queued, or not yet answered by all their bookies."""
        return self.core.bytes_held + self._queued_bytes

    def add(self, payload: bytes | memoryview) -> asyncio.Future[int]:
        """Append an entry. The payload must not change until the outcome is known.

        Returns:
            A future of the entry's id. Futures of one writer are resolved in entry order. It fails with
            LedgerFencedError, QuorumLostError or a MetadataError when the outcome is unknown (a recovery decides), and
            with LedgerClosedError when the add was not accepted or not confirmed before ``close``.

        Raises:
            MessageTooLargeError, TooManyAddsError: nothing was accepted.
            LedgerClosedError, LedgerFencedError, ...: the writer has ended; nothing was accepted.
        """
        outcome: asyncio.Future[int] = self.context.loop.create_future()
        self._add(payload, outcome)
        return outcome

    def add_then(self, payload: bytes | memoryview, on_added: OnAdded, context: Any = None) -> None:
        """Append an entry as ``add`` does, and call ``on_added(context, entry_id, error)`` with the outcome, in order.

        ``entry_id`` is -1 with an error. The callback may add again; it must not raise.

        Raises:
            The errors of ``add``; the callback is not called then.
        """
        self._add(payload, (on_added, context))

    async def close(self) -> LedgerMetadata:
        """Wait for adds under way, then close the ledger at its last confirmed entry. Idempotent.

        Returns:
            The CLOSED record.

        Raises:
            LedgerFencedError: another client took over the ledger.
            MetadataError: the ledger may or may not be closed; call again, or recover it.
            AlreadyClosedError: the client was closed; the ledger may or may not be closed.
        """
        if self._closing is None or (self._closing.done() and self._closing.exception() is not None):
            self.context.check_open()
            self._closing = self.context.loop.create_future()
            self.context.begin_ticking(self)  # so that ``abort`` is called when the context closes
            self.context.spawn(self._close())
        return await shielded(self._closing)

    @override
    def tick(self) -> bool:
        now = self.context.now()
        if now < self._rests_until and not self._queued and self._closing is None:
            return True
        effects = self.core.tick(now)
        if effects:
            self.run(effects)
        self._on_progress()
        self._rests_until = self.core.rests_until
        is_closing = self._closing is not None and not self._closing.done()
        return is_closing or bool(self._queued) or not self.core.is_quiet

    def abort(self, error: HeliographError) -> None:
        """Stop at once: fail adds without an outcome with ``error``, and leave the ledger as it is."""
        self.on_failed = None
        self.run(self.core.abort(error))
        if self._closing is not None and not self._closing.done():
            self._on_close_failed(CloseFailed(error))

    def on_bookies_changed(self) -> None:
        """Tell the core that bookies came or went."""
        self._rests_until = 0
        self.run(self.core.on_bookies_changed(self.context.now()))

    # -- adds

    def _add(self, payload: bytes | memoryview, outcome: asyncio.Future[int] | tuple[OnAdded, Any]) -> None:
        if (self._queued or not self.core.has_room(len(payload))) and self.is_open:
            self._queue(payload, outcome)
            return
        effect = self.core.add(payload, self.context.now())
        self._outcomes.append(outcome)
        self._send_add(effect)
        if self not in self.context.ticking:
            self.context.begin_ticking(self)

    def _queue(self, payload: bytes | memoryview, outcome: asyncio.Future[int] | tuple[OnAdded, Any]) -> None:
        config = self.context.config
        if len(self._queued) >= config.waiting_adds_max or self._queued_bytes + len(payload) > config.waiting_bytes_max:
            raise TooManyAddsError(f"ledger {self.ledger_id} has {len(self._queued)} adds queued: add more slowly")
        self.core.check_size(payload)
        self._queued.append((payload, outcome))
        self._queued_bytes += len(payload)

    def _send_queued(self) -> None:
        """Send queued adds as far as the window has room for them."""
        while self._queued and self.is_open and self.core.has_room(len(self._queued[0][0])):
            payload, outcome = self._queued.popleft()
            self._queued_bytes -= len(payload)
            self._outcomes.append(outcome)
            self._send_add(self.core.add(payload, self.context.now()))

    @override
    def _send_add(self, effect: SendAdd) -> None:
        """Send an entry to its bookies, alone or with others of this turn. It is encoded once for all of them."""
        context, payload = self.context, effect.payload
        ledger_id, entry_id, epoch = effect.ledger_id, effect.entry_id, effect.epoch
        head = encode_entry_head(ledger_id, entry_id, effect.last_add_confirmed, effect.length, payload)
        entry = OutgoingEntry(ledger_id, entry_id, head, payload)
        deadline = context.now() + context.config.request_timeout_ms
        for position, bookie_id in effect.targets:
            request = (entry_id, position, epoch)
            connection = context.bookies.connection(bookie_id)
            if connection is None:
                context.answer_unreachable(bookie_id, self._on_add, request)
            else:
                connection.add(entry, self, request, deadline)

    def on_stored(self, tags: Sequence[AddRequest]) -> None:
        """Pass on that a bookie has stored these entries."""
        effects = self.core.on_adds_stored(tags)
        if effects:
            self.run(effects)
        if self._queued or self._closing is not None:
            self._on_progress()

    def on_add_answer(self, tag: AddRequest, answer: Answer | BookieError) -> None:
        """Pass on the answer of a bookie to one entry."""
        self._on_add(tag, answer, NO_BODY)

    @override
    def _on_add(self, tag: AddRequest, answer: Answer | BookieError, body: memoryview) -> None:
        super()._on_add(tag, answer, body)
        self._rests_until = 0  # the bookie may have failed
        self._on_progress()

    def _on_progress(self) -> None:
        if self._queued:
            self._send_queued()
        if self._closing is not None:
            self._progress.set()

    def _on_confirmed(self, effect: AddsConfirmed) -> None:
        outcomes = self._outcomes
        first, self._next_outcome = self._next_outcome, effect.last_entry_id + 1
        for entry_id in range(first, effect.last_entry_id + 1):
            _resolve(outcomes.popleft(), entry_id, None)

    def _on_adds_failed(self, effect: AddsFailed) -> None:
        assert effect.first_entry_id == self._next_outcome, "outcomes come in entry order"  # I2
        assert len(self._outcomes) == effect.last_entry_id - effect.first_entry_id + 1, "one outcome for each add"
        outcomes, self._outcomes = self._outcomes, deque()
        self._next_outcome = effect.last_entry_id + 1
        for outcome in outcomes:
            _resolve(outcome, -1, effect.error)

    def _on_writer_failed(self, effect: WriterFailed) -> None:
        self._fail_queued(effect.error)
        if self.on_failed is not None:
            self.on_failed(effect.error)

    def _fail_queued(self, error: HeliographError) -> None:
        waiting, self._queued = self._queued, deque()
        self._queued_bytes = 0
        for _, outcome in waiting:
            _resolve(outcome, -1, error)

    # -- close

    async def _close(self) -> None:
        assert self._closing is not None, "a close has its future"
        core = self.core
        await self._wait_while(lambda: bool(self._queued or self._outcomes), CLOSE_PATIENCE_MS)
        await self._wait_while(lambda: core.entries_held > 0, CLOSE_COPIES_PATIENCE_MS)
        self.context.begin_ticking(self)
        self.run(self.core.close(self.context.now()))
        if self._queued:
            self._fail_queued(self.core.why_ended())

    async def _wait_while(self, holds: Callable[[], bool], patience_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_ms / 1000):
                while self.is_open and holds():
                    self._progress.clear()
                    await self._progress.wait()

    def _on_closed(self, effect: WriterClosed) -> None:
        if self._bookies_lacking:
            self.context.spawn(mark_underreplicated(self.context.store, self.ledger_id, self._bookies_lacking))
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(effect.metadata)

    def _on_close_failed(self, effect: CloseFailed) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_exception(effect.error)
            self._closing.exception()  # marks it as seen: the caller may have stopped waiting

    def _on_copies_missing(self, effect: CopiesMissing) -> None:
        self._bookies_lacking.add(effect.bookie_id)

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **MetadataRunner.handlers,
        SendAdd: _send_add,
        AddsConfirmed: _on_confirmed,
        AddsFailed: _on_adds_failed,
        WriterFailed: _on_writer_failed,
        WriterClosed: _on_closed,
        CloseFailed: _on_close_failed,
        CopiesMissing: _on_copies_missing,
    }


def _resolve(outcome: asyncio.Future[int] | tuple[OnAdded, Any], entry_id: int, error: HeliographError | None) -> None:
    if isinstance(outcome, tuple):
        on_added, context = outcome
        on_added(context, entry_id, error)
    elif not outcome.done():
        if error is None:
            outcome.set_result(entry_id)
        else:
            outcome.set_exception(error)
            outcome.exception()  # marks it as seen: ``on_failed`` and later adds tell the owner too
