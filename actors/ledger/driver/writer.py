"""The handle to a ledger that this process created and writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from actors.errors import TooManyAddsError
from actors.ledger.driver.metadata_shell import MetadataShell
from actors.ledger.driver.underreplication import mark_underreplicated
from actors.ledger.driver.world import World
from actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    CopiesMissing,
    WriterClosed,
    WriterFailed,
)
from actors.ledger.writer import WriterCore, WriterState
from heliograph.errors import HeliographError
from metadata.model import LedgerMetadata, Versioned

OnAdded = Callable[[Any, int, HeliographError | None], None]  # context, entry id, error

CLOSE_PATIENCE_MS = 10_000  # for adds without an outcome
CLOSE_COPIES_PATIENCE_MS = 500  # for the last copies of confirmed ones; who has not answered by then may lack them


class LedgerWriter(MetadataShell):
    """The only writer of a ledger. Adds are confirmed in the order in which they were made (I2)."""

    core: WriterCore

    def __init__(self, world: World, metadata: Versioned[LedgerMetadata]) -> None:
        super().__init__(world, WriterCore(metadata, world.chooser_for(metadata.record), world.config.writer))
        self.ledger_id = metadata.record.ledger_id
        self.on_failed: Callable[[HeliographError], None] | None = None
        self._outcomes: deque[asyncio.Future[int] | tuple[OnAdded, Any]] = deque()  # of accepted adds, in order
        self._next_outcome = 0  # entry id of the first of them
        self._waiting: deque[tuple[bytes | memoryview, asyncio.Future[int] | tuple[OnAdded, Any]]] = deque()
        self._waiting_bytes = 0
        self._room_waiters: list[asyncio.Future[None]] = []
        self._closing: asyncio.Future[LedgerMetadata] | None = None
        self._progress = asyncio.Event()  # something happened that a close may wait for
        self._bookies_lacking: set[str] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as last seen in the store."""
        return self.core.metadata

    @property
    def last_add_confirmed(self) -> int:
        """LAC: every entry up to it is confirmed."""
        return self.core.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """LAP: the last entry that got an id."""
        return self.core.last_add_pushed

    @property
    def length(self) -> int:
        """Payload bytes up to and with ``last_add_pushed``."""
        return self.core.length

    @property
    def closed_reason(self) -> HeliographError | None:
        """Why the writer ended by itself; None while it is open or when its owner closed it."""
        return self.core.closed_reason

    @property
    def is_open(self) -> bool:
        """Whether it takes adds."""
        return self.core.state is WriterState.OPEN

    @property
    def has_ended(self) -> bool:
        """Whether it is neither open nor being closed."""
        return self.core.state in (WriterState.CLOSED, WriterState.FAILED)

    @property
    def bytes_in_flight(self) -> int:
        """Payload bytes held: waiting, or not yet answered by all their bookies."""
        return self.core.bytes_held + self._waiting_bytes

    @property
    def has_room(self) -> bool:
        """Whether an add made now would be sent at once."""
        return not self._waiting and self.core.has_room(0)

    async def wait_for_room(self) -> None:
        """Return when ``has_room``, or when the writer ended. Bounds what a fast producer can pile up (I15)."""
        while self.is_open and not self.has_room:
            waiter: asyncio.Future[None] = self.world.loop.create_future()
            self._room_waiters.append(waiter)
            await waiter

    def add(self, payload: bytes | memoryview) -> asyncio.Future[int]:
        """Append an entry. The payload must not change until the outcome is known.

        Returns:
            a future of the entry's id. Futures of one writer are resolved in entry order. It fails with
            LedgerFencedError, QuorumLostError or a MetadataError when the outcome is unknown (a recovery decides),
            with LedgerClosedError when the add was not accepted or not confirmed before ``close``.

        Raises:
            MessageTooLargeError, TooManyAddsError: nothing was accepted.
            LedgerClosedError, LedgerFencedError, ...: the writer ended before; nothing was accepted.
        """
        outcome: asyncio.Future[int] = self.world.loop.create_future()
        self._add(payload, outcome)
        return outcome

    def add_then(self, payload: bytes | memoryview, on_added: OnAdded, context: Any = None) -> None:
        """``add`` without a future: ``on_added(context, entry_id, error)`` is called with the outcome, in order.

        ``entry_id`` is -1 with an error. The callback may add again; it must not raise.

        Raises:
            as ``add``; the callback is not called then.
        """
        self._add(payload, (on_added, context))

    async def close(self) -> LedgerMetadata:
        """Let adds under way finish, then close the ledger at its last confirmed entry. Idempotent.

        Returns:
            the CLOSED record.

        Raises:
            LedgerFencedError: another client took the ledger over.
            MetadataError: the ledger may or may not be closed; call again, or recover it.
            AlreadyClosedError: the client was closed; the ledger may or may not be closed.
        """
        if self._closing is None or (self._closing.done() and self._closing.exception() is not None):
            self.world.check_open()
            self._closing = self.world.loop.create_future()
            self.world.ticking[self] = None  # so that it is told when the world ends
            self.world.spawn(self._close())
        return await asyncio.shield(self._closing)

    def tick(self) -> bool:
        """See Shell."""
        self.run(self.core.tick(self.world.now()))
        self._let_in()
        self._progress.set()
        is_closing = self._closing is not None and not self._closing.done()
        return not self.core.is_quiet or bool(self._waiting) or is_closing

    def abort(self, error: HeliographError) -> None:
        """Stop at once: adds without an outcome fail with ``error``, the ledger stays as it is."""
        self.on_failed = None
        self.run(self.core.abort(error))
        if self._closing is not None and not self._closing.done():
            self._on_close_failed(CloseFailed(error))

    def on_bookies_changed(self) -> None:
        """Bookies came or went."""
        self.run(self.core.on_bookies_changed(self.world.now()))

    # Within

    def _add(self, payload: bytes | memoryview, outcome: asyncio.Future[int] | tuple[OnAdded, Any]) -> None:
        if (self._waiting or not self.core.has_room(len(payload))) and self.is_open:
            self._wait_outside(payload, outcome)
            return
        effect = self.core.add(payload, self.world.now())
        self._outcomes.append(outcome)
        self._send_add(effect)
        if self not in self.world.ticking:
            self.world.ticking[self] = None

    def _wait_outside(self, payload: bytes | memoryview, outcome: asyncio.Future[int] | tuple[OnAdded, Any]) -> None:
        config = self.world.config
        if (
            len(self._waiting) >= config.waiting_adds_max
            or self._waiting_bytes + len(payload) > config.waiting_bytes_max
        ):
            raise TooManyAddsError(f"ledger {self.ledger_id} has {len(self._waiting)} adds waiting: add more slowly")
        self.core.check_size(payload)
        self._waiting.append((payload, outcome))
        self._waiting_bytes += len(payload)

    def _let_in(self) -> None:
        """Move adds from the waiting room into the window, as far as there is room."""
        while self._waiting and self.is_open and self.core.has_room(len(self._waiting[0][0])):
            payload, outcome = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            self._outcomes.append(outcome)
            self._send_add(self.core.add(payload, self.world.now()))
        if self._room_waiters and (self.has_room or not self.is_open):
            waiters, self._room_waiters = self._room_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _on_add(self, context: tuple[int, int, int], answer: Any, body: memoryview) -> None:
        super()._on_add(context, answer, body)
        if self._waiting or self._room_waiters:
            self._let_in()
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
        self._fail_waiting(effect.error)
        if self.on_failed is not None:
            self.on_failed(effect.error)

    def _fail_waiting(self, error: HeliographError) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for _, outcome in waiting:
            _resolve(outcome, -1, error)
        self._let_in()

    async def _close(self) -> None:
        assert self._closing is not None, "a close has its future"
        core = self.core
        await self._wait_while(lambda: bool(self._waiting or self._outcomes), CLOSE_PATIENCE_MS)
        await self._wait_while(lambda: core.entries_held > 0, CLOSE_COPIES_PATIENCE_MS)
        self.world.ticking[self] = None
        self.run(self.core.close(self.world.now()))
        if self._waiting:
            self._fail_waiting(self.core.why_ended())

    async def _wait_while(self, holds: Callable[[], bool], patience_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_ms / 1000):
                while self.is_open and holds():
                    self._progress.clear()
                    await self._progress.wait()

    def _on_closed(self, effect: WriterClosed) -> None:
        if self._bookies_lacking:
            self.world.spawn(mark_underreplicated(self.world.store, self.ledger_id, self._bookies_lacking))
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(effect.metadata)

    def _on_close_failed(self, effect: CloseFailed) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_exception(effect.error)
            self._closing.exception()  # seen: nobody may be waiting any more

    def _on_copies_missing(self, effect: CopiesMissing) -> None:
        self._bookies_lacking.add(effect.bookie_id)

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **MetadataShell.handlers,
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
            outcome.exception()  # seen: ``on_failed`` and later adds tell the owner too
