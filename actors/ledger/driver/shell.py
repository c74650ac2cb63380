"""Running effects: the world's side of the cores, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from actors.errors import BookieError
from actors.ledger.driver.answers import batch_of_entries, lac_of, one_entry, reply_of, runs_of
from actors.ledger.driver.world import BookieWorld
from actors.ledger.effects import (
    Effect,
    ListEntries,
    PollLac,
    ReadBatch,
    ReadEntry,
    ReadLac,
    Reply,
    SendAdd,
    SendCopy,
    SendLac,
)
from actors.wire.entry import encode_entry, encode_entry_head
from actors.wire.messages import LIST_RUNS_MAX, Answer, Flag, Op, Request, Status

_ADD = int(Op.ADD)
_RECOVERY_ADD_FLAGS = int(Flag.RECOVERY | Flag.HIGH_PRIORITY)


class Shell:
    """Runs the effects of one core on bookies and gives it their answers.

    A subclass handles the reports of its core: it adds them to ``handlers``.
    """

    def __init__(self, world: BookieWorld, core: Any) -> None:
        """``core`` has the ``on_...`` methods that its effects' answers need, and ``tick``."""
        self.world = world
        self.core = core

    def run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order. Answers never come within this call."""
        handlers = self.handlers
        for effect in effects:
            handlers[type(effect)](self, effect)

    def tick(self) -> bool:
        """Tell the core the time; whether it goes on waiting."""
        self.run(self.core.tick(self.world.now()))
        return not self.core.is_done

    # Adds

    def _send_add(self, effect: SendAdd) -> None:
        """An entry is encoded once for all its bookies, and its payload is not copied for any of them."""
        world, payload = self.world, effect.payload
        head = encode_entry_head(effect.ledger_id, effect.entry_id, effect.last_add_confirmed, effect.length, payload)
        flags = _RECOVERY_ADD_FLAGS if effect.recovery else 0
        deadline = world.now() + world.config.request_timeout_ms
        for position, bookie_id in effect.targets:
            context = (effect.entry_id, position, effect.epoch)
            connection = world.bookies.connection(bookie_id)
            if connection is None:
                world.answer_for_nobody(bookie_id, self._on_add, context)
                continue
            connection.send(
                _ADD, effect.ledger_id, effect.entry_id, flags, 0, -1, head, self._on_add, context, deadline, payload
            )

    def _on_add(self, context: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        is_ok = type(answer) is Answer and answer.status is Status.OK
        reply = Reply.OK if is_ok else reply_of(answer)
        self.run(self.core.on_add_answer(*context, reply, self.world.now()))

    def _send_lac(self, effect: SendLac) -> None:
        request = Request(Op.WRITE_LAC, 0, effect.ledger_id, effect.last_add_confirmed)
        for bookie_id in effect.bookies:
            self.world.request(bookie_id, request, b"", _ignore, None)

    def _send_copy(self, effect: SendCopy) -> None:
        entry = effect.entry
        body = encode_entry(effect.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
        flags = Flag.RECOVERY
        request = Request(Op.ADD, 0, effect.ledger_id, entry.entry_id, flags)
        self.world.request(effect.bookie_id, request, body, self._on_copy, (entry.entry_id, effect.bookie_id))

    def _on_copy(self, context: tuple[int, str], answer: Answer | BookieError, body: memoryview) -> None:
        self.run(self.core.on_copy_answer(*context, reply_of(answer), self.world.now()))

    # Reads

    def _read_lac(self, effect: ReadLac) -> None:
        flags = Flag.FENCE | Flag.HIGH_PRIORITY if effect.fence else Flag.NONE
        request = Request(Op.READ_LAC, 0, effect.ledger_id, flags=flags)
        for position, bookie_id in effect.targets:
            self.world.request(bookie_id, request, b"", self._on_lac, (effect.ledger_id, position))

    def _poll_lac(self, effect: PollLac) -> None:
        position, bookie_id = effect.target
        request = Request(Op.LONG_POLL_LAC, 0, effect.ledger_id, effect.after, limit=effect.wait_ms)
        self.world.request(bookie_id, request, b"", self._on_lac, (effect.ledger_id, position), effect.wait_ms)

    def _on_lac(self, context: tuple[int, int], answer: Answer | BookieError, body: memoryview) -> None:
        ledger_id, position = context
        reply, last_add_confirmed, entry = lac_of(answer, body, ledger_id)
        self.run(self.core.on_lac_answer(position, reply, last_add_confirmed, entry, self.world.now()))

    def _read_entry(self, effect: ReadEntry) -> None:
        flags = Flag.FENCE | Flag.HIGH_PRIORITY if effect.fence else Flag.NONE
        request = Request(Op.READ, 0, effect.ledger_id, effect.entry_id, flags)
        for position, bookie_id in effect.targets:
            context = (effect.ledger_id, effect.entry_id, position)
            self.world.request(bookie_id, request, b"", self._on_entry, context)

    def _on_entry(self, context: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        ledger_id, entry_id, position = context
        reply, entry = one_entry(answer, body, ledger_id, entry_id)
        self.run(self.core.on_entry_answer(entry_id, position, reply, entry, self.world.now()))

    def _read_batch(self, effect: ReadBatch) -> None:
        request = Request(
            Op.READ_BATCH,
            0,
            effect.ledger_id,
            effect.first_entry_id,
            limit=effect.max_bytes,
            last_entry_id=effect.last_entry_id,
        )
        context = (effect.request, effect.ledger_id, effect.first_entry_id)
        self.world.request(effect.bookie_id, request, b"", self._on_batch, context)

    def _on_batch(self, context: tuple[int, int, int], answer: Answer | BookieError, body: memoryview) -> None:
        request, ledger_id, first_entry_id = context
        reply, entries = batch_of_entries(answer, body, ledger_id, first_entry_id)
        self.run(self.core.on_batch_answer(request, reply, entries, self.world.now()))

    def _list_entries(self, effect: ListEntries) -> None:
        self._list_from(effect, 0, ())

    def _list_from(self, effect: ListEntries, first_entry_id: int, before: tuple[tuple[int, int], ...]) -> None:
        request = Request(Op.LIST_ENTRIES, 0, effect.ledger_id, first_entry_id)
        self.world.request(effect.bookie_id, request, b"", self._on_listed, (effect, before))

    def _on_listed(
        self,
        context: tuple[ListEntries, tuple[tuple[int, int], ...]],
        answer: Answer | BookieError,
        body: memoryview,
    ) -> None:
        effect, before = context
        reply, runs = runs_of(answer, body)
        if len(runs) >= LIST_RUNS_MAX:  # I15: a longer list comes in parts
            self._list_from(effect, runs[-1][1] + 1, before + runs)
            return
        stored = before + runs if reply is Reply.OK else ()
        self.run(self.core.on_entries_listed(effect.bookie_id, reply, stored, self.world.now()))

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        SendAdd: _send_add,
        SendLac: _send_lac,
        SendCopy: _send_copy,
        ReadLac: _read_lac,
        PollLac: _poll_lac,
        ReadEntry: _read_entry,
        ReadBatch: _read_batch,
        ListEntries: _list_entries,
    }


def _ignore(context: Any, answer: Answer | BookieError, body: memoryview) -> None:
    """Nobody waits for this answer."""
