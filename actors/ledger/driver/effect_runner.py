"""Runs the effects of a core on bookies and passes the answers back, the same for all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from heliograph.actors.errors import BookieError
from heliograph.actors.ledger.driver.answers import batch_of_entries, lac_of, one_entry, reply_of, runs_of
from heliograph.actors.ledger.driver.context import BookieContext
from heliograph.actors.ledger.effects import (
    Effect,
    ListEntries,
    ReadBatch,
    ReadEntry,
    ReadLac,
    Reply,
    SendAdd,
    SendCopy,
    SendLac,
)
from heliograph.actors.wire.entry import encode_entry, encode_entry_head
from heliograph.actors.wire.messages import LIST_RUNS_MAX, Answer, BookieOp, BookieRequest, Flag, Status

_ADD = int(BookieOp.ADD)
_RECOVERY_ADD_FLAGS = int(Flag.RECOVERY | Flag.HIGH_PRIORITY)


class EffectRunner:
    """Runs the effects of one core on bookies and passes the answers to it.

    A subclass adds handlers for the reports of its core to ``handlers``. The tag of a request comes back with its
    answer.
    """

    def __init__(self, context: BookieContext, core: Any) -> None:
        """``core`` has ``tick``, and the ``on_...`` methods that take the answers to its effects."""
        self.context = context
        self.core = core
        self.rests_until = 0  # time before which ``tick`` need not be called

    def run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order. No answer comes during this call."""
        handlers = self.handlers
        for effect in effects:
            handlers[type(effect)](self, effect)

    def tick(self) -> bool:
        """Call the core's ``tick``. Return whether it waits for further ticks."""
        self.run(self.core.tick(self.context.now()))
        return not self.core.is_done

    # -- adds

    def _send_add(self, effect: SendAdd) -> None:
        """Send an entry to its bookies, each by itself. It is encoded once for all of them, and not copied."""
        context, payload = self.context, effect.payload
        head = encode_entry_head(effect.ledger_id, effect.entry_id, effect.last_add_confirmed, effect.length, payload)
        flags = _RECOVERY_ADD_FLAGS if effect.recovery else 0
        deadline = context.now() + context.config.request_timeout_ms
        for position, bookie_id in effect.targets:
            tag = (effect.entry_id, position, effect.epoch)
            connection = context.bookies.connection(bookie_id)
            if connection is None:
                context.answer_unreachable(bookie_id, self._on_add, tag)
                continue
            connection.send(
                _ADD, effect.ledger_id, effect.entry_id, flags, 0, -1, head, self._on_add, tag, deadline, payload
            )

    def _on_add(self, tag: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        is_ok = type(answer) is Answer and answer.status is Status.OK
        reply = Reply.OK if is_ok else reply_of(answer)
        self.run(self.core.on_add_answer(*tag, reply, self.context.now()))

    def _send_lac(self, effect: SendLac) -> None:
        context = self.context
        group = context.group(effect.bookies)
        group.tell_lac(effect.ledger_id, effect.last_add_confirmed, context.config.request_timeout_ms)

    def _send_copy(self, effect: SendCopy) -> None:
        entry = effect.entry
        body = encode_entry(effect.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
        flags = Flag.RECOVERY
        request = BookieRequest(BookieOp.ADD, 0, effect.ledger_id, entry.entry_id, flags)
        self.context.request(effect.bookie_id, request, body, self._on_copy, (entry.entry_id, effect.bookie_id))

    def _on_copy(self, tag: tuple[int, str], answer: Answer | BookieError, body: memoryview) -> None:
        self.run(self.core.on_copy_answer(*tag, reply_of(answer), self.context.now()))

    # -- reads

    def _read_lac(self, effect: ReadLac) -> None:
        flags = Flag.FENCE | Flag.HIGH_PRIORITY if effect.fence else Flag.NONE
        request = BookieRequest(BookieOp.READ_LAC, 0, effect.ledger_id, flags=flags)
        for position, bookie_id in effect.targets:
            self.context.request(bookie_id, request, b"", self._on_lac, (effect.ledger_id, position))

    def _on_lac(self, tag: tuple[int, int], answer: Answer | BookieError, body: memoryview) -> None:
        ledger_id, position = tag
        reply, last_add_confirmed, entry = lac_of(answer, body, ledger_id)
        self.run(self.core.on_lac_answer(position, reply, last_add_confirmed, entry, self.context.now()))

    def _read_entry(self, effect: ReadEntry) -> None:
        flags = Flag.FENCE | Flag.HIGH_PRIORITY if effect.fence else Flag.NONE
        request = BookieRequest(BookieOp.READ, 0, effect.ledger_id, effect.entry_id, flags)
        for position, bookie_id in effect.targets:
            tag = (effect.ledger_id, effect.entry_id, position)
            self.context.request(bookie_id, request, b"", self._on_entry, tag)

    def _on_entry(self, tag: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        ledger_id, entry_id, position = tag
        reply, entry = one_entry(answer, body, ledger_id, entry_id)
        self.run(self.core.on_entry_answer(entry_id, position, reply, entry, self.context.now()))

    def _read_batch(self, effect: ReadBatch) -> None:
        request = BookieRequest(
            BookieOp.READ_BATCH,
            0,
            effect.ledger_id,
            effect.first_entry_id,
            Flag.HEADS if effect.heads else Flag.NONE,
            limit=effect.max_bytes,
            last_entry_id=effect.last_entry_id,
        )
        tag = (effect.request, effect.ledger_id, effect.first_entry_id)
        self.context.request(effect.bookie_id, request, b"", self._on_batch, tag)

    def _on_batch(self, tag: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        request, ledger_id, first_entry_id = tag
        reply, entries = batch_of_entries(answer, body, ledger_id, first_entry_id, copies=self.context.copies_entries)
        self.run(self.core.on_batch_answer(request, reply, entries, self.context.now()))

    def _list_entries(self, effect: ListEntries) -> None:
        self._list_from(effect, 0, ())

    def _list_from(self, effect: ListEntries, first_entry_id: int, before: tuple[tuple[int, int], ...]) -> None:
        request = BookieRequest(BookieOp.LIST_ENTRIES, 0, effect.ledger_id, first_entry_id)
        self.context.request(effect.bookie_id, request, b"", self._on_listed, (effect, before))

    def _on_listed(
        self,
        tag: tuple[ListEntries, tuple[tuple[int, int], ...]],
        answer: Answer | BookieError,
        body: memoryview,
    ) -> None:
        effect, before = tag
        reply, runs = runs_of(answer, body)
        if len(runs) >= LIST_RUNS_MAX:  # I15: a longer list is requested in parts
            self._list_from(effect, runs[-1][1] + 1, before + runs)
            return
        stored = before + runs if reply is Reply.OK else ()
        self.run(self.core.on_entries_listed(effect.bookie_id, reply, stored, self.context.now()))

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        SendAdd: _send_add,
        SendLac: _send_lac,
        SendCopy: _send_copy,
        ReadLac: _read_lac,
        ReadEntry: _read_entry,
        ReadBatch: _read_batch,
        ListEntries: _list_entries,
    }
