"""The handle of a ledger that this process created and writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from heliograph.actors.errors import BookieError, TooManyAddsError
from heliograph.actors.ledger.driver.answers import reply_of
from heliograph.actors.ledger.driver.context import NO_BODY, DriverContext
from heliograph.actors.ledger.driver.metadata_runner import MetadataRunner
from heliograph.actors.ledger.effects import (
    AddRequest,
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    CopiesMissing,
    Reply,
    SendAdd,
    WriterClosed,
    WriterFailed,
)
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.actors.ledger.state import WriterState
from heliograph.actors.ledger.writer import WriterCore
from heliograph.actors.wire.entry import encode_entry_head
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata, Versioned
from heliograph.metadata.recipes.repair_tasks import mark_underreplicated

OnAdded = Callable[[Any, int, HeliographError | None], None]  # the caller's context, entry id, error

CLOSE_PATIENCE_MS = 10_000  # how long a close waits for adds without an outcome
CLOSE_COPIES_PATIENCE_MS = 500  # and for the last copies of confirmed ones; a bookie silent until then may lack them
# All ledgers share these: an own deque would take 760 bytes of each, an own set 216.
_NOTHING: deque[Any] = deque(maxlen=0)  # holds nothing ever
_NOBODY: frozenset[str] = frozenset()
OBSERVERS_MAX = 1_000  # adds of one ledger whose bookies are watched, the newest ones  # I15


class AddObserver(Protocol):
    """Follows one add to its bookies."""

    def sent(self, bookies: Iterable[str]) -> None:
        """Learn which bookies the entry was sent to; called again if others take their places."""

    def answered(self, bookie: str, error: str) -> None:
        """Get a bookie's answer: it stored the entry, or another outcome."""


class LedgerWriter(MetadataRunner):
    """The only writer of a ledger. Adds are confirmed in the order in which they were made (I2).

    An add that does not fit the window of the core waits in a bounded queue here (I15).
    """

    core: WriterCore

    def __init__(self, context: DriverContext, metadata: Versioned[LedgerMetadata], minimum_copies: int = 0) -> None:
        """``minimum_copies`` is the core's."""
        chooser = context.chooser_for(metadata.record)
        core = WriterCore(metadata, chooser, context.config.writer, minimum_copies, context.window_room)
        super().__init__(context, core)
        self.ledger_id = metadata.record.ledger_id
        self.on_failed: Callable[[HeliographError], None] | None = None
        self._outcomes: deque[tuple[OnAdded, Any]] = _NOTHING  # of sent adds, in order
        self._next_outcome = 0  # entry id of the first outcome
        self._queued: deque[tuple[bytes | memoryview, OnAdded, Any]] = _NOTHING
        self._queued_bytes = 0
        self._observers: dict[int, tuple[AddObserver, set[str]]] | None = None  # by entry id, with those not heard yet
        self._closing: asyncio.Future[LedgerMetadata] | None = None
        self._progress: asyncio.Event | None = None  # once closing: set at each event that the close may wait for
        self._bookies_lacking: frozenset[str] = _NOBODY
        if not self.core.is_quiet:  # it has vacancies, and waits for bookies
            context.begin_ticking(self)

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
        self.add_then(payload, _settle, outcome)
        return outcome

    def add_then(
        self,
        payload: bytes | memoryview,
        on_added: OnAdded,
        context: Any = None,
        observer: AddObserver | None = None,
    ) -> None:
        """Append an entry as ``add`` does, and call ``on_added(context, entry_id, error)`` with the outcome, in order.

        ``entry_id`` is -1 with an error. The callback may add again; it must not raise. An add that has to wait for
        room in the window has no ``observer``.

        Raises:
            The errors of ``add``; the callback is not called then.
        """
        if self._queued and self.is_open:
            self._queue(payload, on_added, context)
            return
        driver = self.context
        now = driver.now()
        effect = self.core.offer(payload, now)
        if effect is None:
            self._queue(payload, on_added, context)
            return
        if self._outcomes is _NOTHING:
            self._outcomes = deque()
        self._outcomes.append((on_added, context))
        if observer is not None:
            self._observe(effect, observer)
        self._send(effect, now)
        if self not in driver.ticking:
            self.rests_until = self.core.rests_until
            driver.begin_ticking(self)

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
            self._closing, self._progress = self.context.loop.create_future(), asyncio.Event()
            self.rests_until = 0
            self.context.begin_ticking(self)  # so that ``abort`` is called when the context closes
            self.context.spawn(self._close())
        return await shielded(self._closing)

    @override
    def tick(self) -> bool:
        now = self.context.now()
        if not self._queued and self._closing is None:
            self.rests_until = self.core.rests_until
            if self.rests_until > now:  # there were adds meanwhile
                return True
        effects = self.core.tick(now)
        if effects:
            self.run(effects)
        self._on_progress()
        self.rests_until = 0 if self._queued or self._closing is not None else self.core.rests_until
        is_closing = self._closing is not None and not self._closing.done()
        if is_closing or self._queued or not self.core.is_quiet:
            return True
        if not self._outcomes:
            self._outcomes = _NOTHING
        return False

    def abort(self, error: HeliographError) -> None:
        """Stop at once: fail adds without an outcome with ``error``, and leave the ledger as it is."""
        self.on_failed = None
        self.run(self.core.abort(error))
        if self._closing is not None and not self._closing.done():
            self._on_close_failed(CloseFailed(error))

    async def probe(self, on_fenced: Callable[[HeliographError], None]) -> bool:
        """Ask the bookies whether they would take another add, and store the LAC there. No entry is written.

        Args:
            on_fenced: called if a bookie says that the ledger is fenced, also after this call returned; the writer
                fails as at an add.

        Returns:
            True if an ack quorum would: nobody had recovered the ledger when the call began. False if too few answered,
            or the writer has ended.
        """
        core, context = self.core, self.context
        outcome: asyncio.Future[bool] = context.loop.create_future()
        bookies = [name for name in core.metadata.last_segment.bookies if not is_vacancy(name)]
        left, would = set(bookies), set[str]()

        def on_answer(bookie_id: str, answer: Answer | BookieError, body: memoryview) -> None:
            reply = reply_of(answer)
            left.discard(bookie_id)
            if reply is Reply.OK:
                would.add(bookie_id)
            elif reply is Reply.FENCED and self.is_open:  # else its owner has ended it, and may have fenced it itself
                self.run(core.on_fenced())
                on_fenced(core.why_ended())
            if not outcome.done() and (core.is_witnessed(would) or not left or not self.is_open):
                outcome.set_result(self.is_open and core.is_witnessed(would))

        request = BookieRequest(BookieOp.WRITE_LAC, 0, self.ledger_id, core.last_add_confirmed)
        for bookie_id in bookies:
            context.request(bookie_id, request, b"", on_answer, bookie_id)
        return await outcome

    def on_bookies_changed(self) -> None:
        """Tell the core that bookies came or went."""
        self.rests_until = 0
        self.run(self.core.on_bookies_changed(self.context.now()))

    # -- adds

    def _queue(self, payload: bytes | memoryview, on_added: OnAdded, context: Any) -> None:
        config = self.context.config
        if len(self._queued) >= config.waiting_adds_max or self._queued_bytes + len(payload) > config.waiting_bytes_max:
            raise TooManyAddsError(f"ledger {self.ledger_id} has {len(self._queued)} adds queued: add more slowly")
        self.core.check_size(payload)
        if self._queued is _NOTHING:
            self._queued = deque()
        self._queued.append((payload, on_added, context))
        self._queued_bytes += len(payload)
        self.rests_until = 0

    def _send_queued(self) -> None:
        """Send queued adds as far as the window has room for them."""
        now = self.context.now()
        while self._queued and self.is_open:
            payload, on_added, context = self._queued[0]
            effect = self.core.offer(payload, now)
            if effect is None:
                return
            self._queued.popleft()
            self._queued_bytes -= len(payload)
            if self._outcomes is _NOTHING:
                self._outcomes = deque()
            self._outcomes.append((on_added, context))
            self._send(effect, now)

    @override
    def _send_add(self, effect: SendAdd) -> None:
        if self._observers is not None and (found := self._observers.get(effect.entry_id)) is not None:
            self._observe(effect, found[0])  # another bookie takes the place of one that failed
        self._send(effect, self.context.now())

    def _send(self, effect: SendAdd, now: int) -> None:
        """Send an entry to its bookies, alone or with others of this turn. It is encoded once for all of them."""
        context, payload, targets = self.context, effect.payload, effect.targets
        ledger_id, entry_id = effect.ledger_id, effect.entry_id
        group, positions = context.routes.get(targets) or context.route(targets)
        group.add(
            ledger_id,
            entry_id,
            encode_entry_head(ledger_id, entry_id, effect.last_add_confirmed, effect.length, payload),
            payload,
            self,
            (entry_id, effect.epoch, positions),
            now + context.config.request_timeout_ms,
        )

    def on_stored(self, bookie_id: str, tags: Sequence[AddRequest]) -> None:
        """Pass on that a bookie has stored these entries."""
        if self._observers is not None:
            for entry_id, _, _ in tags:
                self._tell_observer(entry_id, bookie_id, "")
        for confirmed in self.core.on_adds_stored(bookie_id, tags):
            self._on_confirmed(confirmed)
        if self._queued or self._closing is not None:
            self._on_progress()

    def on_add_answer(self, bookie_id: str, tag: AddRequest, answer: Answer | BookieError) -> None:
        entry_id, epoch, positions = tag
        if self._observers is not None:
            reply = reply_of(answer)
            self._tell_observer(entry_id, bookie_id, "" if reply is Reply.OK else reply.name.lower())
        self._on_add((entry_id, positions[bookie_id], epoch), answer, NO_BODY)
        self.rests_until = 0  # the bookie may have failed
        self._on_progress()

    def _observe(self, effect: SendAdd, observer: AddObserver) -> None:
        bookies = {bookie_id for _, bookie_id in effect.targets}
        if self._observers is None:
            self._observers = {}
        _, missing = self._observers.setdefault(effect.entry_id, (observer, set()))
        missing |= bookies
        if len(self._observers) > OBSERVERS_MAX:
            del self._observers[next(iter(self._observers))]
        observer.sent(sorted(bookies))

    def _tell_observer(self, entry_id: int, bookie_id: str, error: str) -> None:
        found = self._observers.get(entry_id) if self._observers is not None else None
        if found is None or self._observers is None:
            return
        observer, missing = found
        missing.discard(bookie_id)
        if not missing:
            del self._observers[entry_id]
        observer.answered(bookie_id, error)

    def _on_progress(self) -> None:
        if self._queued:
            self._send_queued()
        if self._progress is not None:
            self._progress.set()

    def _on_confirmed(self, effect: AddsConfirmed) -> None:
        outcomes = self._outcomes
        first, self._next_outcome = self._next_outcome, effect.last_entry_id + 1
        for entry_id in range(first, effect.last_entry_id + 1):
            on_added, context = outcomes.popleft()
            on_added(context, entry_id, None)

    def _on_adds_failed(self, effect: AddsFailed) -> None:
        assert effect.first_entry_id == self._next_outcome, "outcomes come in entry order"  # I2
        assert len(self._outcomes) == effect.last_entry_id - effect.first_entry_id + 1, "one outcome for each add"
        outcomes, self._outcomes = self._outcomes, _NOTHING
        self._next_outcome = effect.last_entry_id + 1
        for on_added, context in outcomes:
            on_added(context, -1, effect.error)

    def _on_writer_failed(self, effect: WriterFailed) -> None:
        self._fail_queued(effect.error)
        if self.on_failed is not None:
            self.on_failed(effect.error)

    def _fail_queued(self, error: HeliographError) -> None:
        waiting, self._queued = self._queued, _NOTHING
        self._queued_bytes = 0
        for _, on_added, context in waiting:
            on_added(context, -1, error)

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
        progress = self._progress
        assert progress is not None, "a close notes later events"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_ms / 1000):
                while self.is_open and holds():
                    progress.clear()
                    await progress.wait()

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
        self._bookies_lacking |= {effect.bookie_id}

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


def _settle(outcome: asyncio.Future[int], entry_id: int, error: HeliographError | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(entry_id)
    else:
        outcome.set_exception(error)
        outcome.exception()  # marks it as seen: ``on_failed`` and later adds tell the owner too
