"""The states of one partition in memory, and their changes since the last commit (pure)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import QuotaExceededError
from heliograph.processors.records import GroupRecord, KeyRecord, ProcessorOutput, StateKey

if TYPE_CHECKING:
    from heliograph.client.schemas.schema import Schema
    from heliograph.processors.context import Context
    from heliograph.processors.options import ProcessorOptions
    from heliograph.processors.windows import Window
    from heliograph.protocol.message_id import MessageId

GROUP_BYTES_MAX = 2 << 20  # of states and outputs, after which a group is committed early; one more message fits # I15
GROUP_MESSAGES_MAX = 10_000  # I15
STALE_TIMERS_MAX = 1_000  # that were replaced, beside as many as there are timers # I15


class StateForm:
    """How the states of a processor are made, and how they become bytes.

    Args:
        kind: The type of the states; None: there are none.
        schema: How they become bytes; None: they are bytes.
    """

    def __init__(self, kind: Callable[[], Any] | None, schema: Schema[Any] | None) -> None:
        self.kind = kind
        self.is_used = kind is not None
        self._schema = schema
        self._decode = None if schema is None else schema.decoder(None)

    def new(self) -> Any:
        """Return the state of a new key; None if its type cannot be made of nothing."""
        try:
            return None if self.kind is None else self.kind()
        except TypeError:
            return None

    def encode(self, state: Any) -> bytes | None:
        """Return the bytes of a state. Raises BadRequestError for a state of another type."""
        if state is None or not self.is_used:
            return None
        return bytes(state) if self._schema is None else self._schema.encode(state)

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return self.new()
        return data if self._decode is None else self._decode(data)


class Cell:
    """The state and the timers of a key while they are worked on."""

    __slots__ = ("has_state", "key", "state", "stored", "timers", "untouched", "was_due")

    def __init__(self, key: StateKey, form: StateForm, data: bytes | None) -> None:
        record = KeyRecord() if data is None else KeyRecord.decode(data)
        self.key = key
        self.has_state = form.is_used
        self.stored = data
        self.state = form.decode(record.state)
        self.timers = dict(record.timers)
        self.was_due = record.timers  # as they are scheduled
        self.untouched = form.encode(self.state) if record.state is None else None  # what a new key begins with


class PartitionState:
    """The states of one partition: the committed states, and the group since.

    Attributes:
        committed: The last group that is in the changelog.
        messages: Messages of the group.
        late: Messages, from the beginning on, that came after the end of their windows.
    """

    def __init__(self, options: ProcessorOptions, form: StateForm, window: Window | None) -> None:
        self.committed = GroupRecord({})
        self.messages = self.late = 0
        self._options = options
        self._form = form
        self._window = window
        self._records: dict[str, bytes] = {}  # by the keys of the changelog
        self._cells: dict[StateKey, Cell] = {}  # of the group
        self._changed: dict[str, bytes | None] = {}  # records of the group; None: deleted
        self._outputs: list[ProcessorOutput] = []
        self._positions: dict[str, MessageId] = {}
        self._seen_ms: dict[str, int] = {}
        self._bytes = 0
        self._live = 0  # keys with a record, those of the group included
        self._due: dict[tuple[StateKey, str], int] = {}  # of each timer
        self._timers: list[tuple[int, StateKey, str]] = []  # a heap, with timers that are no more
        self._ends: list[tuple[int, StateKey]] = []  # a heap of the windows with a state

    def __len__(self) -> int:
        return self._live

    # -- restoring

    def restore(self, key: str, data: bytes | None) -> None:
        """Load a record of the changelog; None deletes it."""
        if data is None:
            self._records.pop(key, None)
        else:
            self._records[key] = data

    def begin(self, last: GroupRecord) -> None:
        """Go on after the last group of the changelog, whose states may be newer than the records.

        Raises:
            ProtocolError: A record cannot be read.
        """
        for text, data in last.states.items():
            self.restore(text, data)
        for text, record in self._records.items():
            if (key := StateKey.parse(text)) is not None:
                self._schedule(key, {}, KeyRecord.decode(record).timers, is_new=True)
        self._live = len(self._records)
        self.committed, self.late = last, last.late
        self._positions, self._seen_ms = dict(last.positions), dict(last.seen_ms)

    # -- the group

    @property
    def is_full(self) -> bool:
        """Return whether the group has to be committed before another message."""
        return self._bytes >= GROUP_BYTES_MAX or self.messages >= GROUP_MESSAGES_MAX

    @property
    def has_changes(self) -> bool:
        """Return whether a commit has something to store."""
        return self.messages > 0 or bool(self._changed) or bool(self._outputs)

    @property
    def watermark(self) -> int | None:
        """Return the event time before which windows are over; None: there is none."""
        return None if self._window is None else self._window.watermark(self._seen_ms)

    def is_new(self, topic: str, position: MessageId) -> bool:
        """Return whether a message of an input comes after the taken messages."""
        last = self._positions.get(topic)
        return last is None or position > last

    def cell(self, key: StateKey) -> Cell:
        found = self._cells.get(key)
        if found is None:
            text = key.text
            found = Cell(key, self._form, self._changed[text] if text in self._changed else self._records.get(text))
            self._cells[key] = found
        return found

    def accept(self, contexts: Sequence[Context]) -> None:
        """Add the effects of a handler. None is added if this raises.

        Raises:
            QuotaExceededError: A state is larger than ``state_bytes_max``, there are ``keys_max`` keys, or all of it
                together has more than ``GROUP_BYTES_MAX``.
            BadRequestError: A state does not fit its type.
        """
        cells = {context.cell.key: context.cell for context in contexts if context.cell is not None}
        records = {key: self._record_of(cell) for key, cell in cells.items()}
        datas = {key: None if record.is_empty else record.encode() for key, record in records.items()}
        changed = {key: data for key, data in datas.items() if data != cells[key].stored}
        added = sum((data is not None) - (cells[key].stored is not None) for key, data in changed.items())
        if added > 0 and self._live + added > self._options.keys_max:
            raise QuotaExceededError(
                f"partition of {self._options.name} has too many keys",
                field="keys_max",
                limit=f"{self._options.keys_max}",
            )
        size = sum(len(data or b"") for data in changed.values())
        size += sum(output.size for context in contexts for output in context.sent)
        if size > GROUP_BYTES_MAX:
            raise QuotaExceededError(
                "one call changes and sends too much", field="send", limit=f"{GROUP_BYTES_MAX} bytes"
            )
        self._live += added
        for key, data in changed.items():
            cell = cells[key]
            self._schedule(key, cell.was_due, cell.timers, is_new=cell.stored is None)
            cell.stored, cell.was_due = data, dict(cell.timers)
            self._changed[key.text] = data
            self._bytes += len(data or b"") + len(key.key)
        for context in contexts:
            self.send(context.sent)

    def drop(self, contexts: Iterable[Context]) -> None:
        """Forget the effects of a handler that failed."""
        for context in contexts:
            if context.cell is not None:
                self._cells.pop(context.cell.key, None)

    def send(self, outputs: Iterable[ProcessorOutput]) -> None:
        for output in outputs:
            self._outputs.append(output)
            self._bytes += output.size

    def passed(self, topic: str, position: MessageId, time_ms: int) -> None:
        """Note that a message of an input was handled, with its event time."""
        self._positions[topic] = position
        self._seen_ms[topic] = max(time_ms, self._seen_ms.get(topic, time_ms))
        self.messages += 1

    def forget(self, key: StateKey) -> None:
        """Delete the state of a window that is over."""
        cell = self.cell(key)
        self._schedule(key, cell.was_due, {}, is_new=False)
        self._live -= cell.stored is not None
        del self._cells[key]
        self._changed[key.text] = None
        self._bytes += len(key.key)

    # -- what is due

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, which may be a cancelled timer."""
        return self._timers[0][0] if self._timers else None

    def due_timer(self, now_ms: int) -> tuple[StateKey, str] | None:
        """Return a timer that is due; it stays until ``end_timer``."""
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, key, name = self._timers[0]
            if self._due.get((key, name)) == due_ms:
                return key, name
            heapq.heappop(self._timers)
        return None

    def end_window(self) -> StateKey | None:
        """Return a window that is over and has a state; it stays until ``forget``."""
        watermark = self.watermark
        while self._ends and watermark is not None and self._ends[0][0] <= watermark:
            key = self._ends[0][1]
            if self.cell(key).stored is not None:
                return key
            heapq.heappop(self._ends)
        return None

    # -- the commit

    @property
    def topics(self) -> set[str]:
        return {output.topic for output in self._outputs}

    def sealed(self, choose: Callable[[ProcessorOutput], int]) -> GroupRecord:
        """Return the group, to be stored; ``choose`` returns the partition of each output."""
        next_ids = dict(self.committed.next_ids)
        for output in self.committed.outputs:
            next_ids[output.topic, output.partition] += 1
        outputs = tuple(replace(output, partition=choose(output)) for output in self._outputs)
        for output in outputs:
            next_ids.setdefault((output.topic, output.partition), 0)
        return GroupRecord(
            self._positions, self._seen_ms, next_ids, outputs, self._changed, self.late, self.committed.life
        )

    def stored(self, group: GroupRecord) -> None:
        """Note that the sealed group is in the changelog, and begin the next one."""
        for key, data in group.states.items():
            self.restore(key, data)
        self.committed = group
        self._positions, self._seen_ms = dict(group.positions), dict(group.seen_ms)
        self._cells, self._changed, self._outputs = {}, {}, []
        self.messages = self._bytes = 0

    @property
    def positions(self) -> Mapping[str, MessageId]:
        """Return the last message of each input that was handled."""
        return self._positions

    def _record_of(self, cell: Cell) -> KeyRecord:
        state = self._form.encode(cell.state)
        if state is not None and len(state) > self._options.state_bytes_max:
            raise QuotaExceededError(
                f"the state of {cell.key.key!r} has {len(state)} bytes",
                field="state_bytes_max",
                limit=f"{self._options.state_bytes_max} bytes",
            )
        is_untouched = cell.stored is None and state == cell.untouched
        return KeyRecord(None if is_untouched else state, cell.timers)

    def _schedule(self, key: StateKey, before: Mapping[str, int], after: Mapping[str, int], *, is_new: bool) -> None:
        for name in before.keys() - after.keys():
            self._due.pop((key, name), None)
        for name, due_ms in after.items():
            if before.get(name) != due_ms:
                self._due[key, name] = due_ms
                heapq.heappush(self._timers, (due_ms, key, name))
        if len(self._timers) > 2 * len(self._due) + STALE_TIMERS_MAX:
            self._timers = [(due_ms, key, name) for (key, name), due_ms in self._due.items()]
            heapq.heapify(self._timers)
        if is_new and self._window is not None and key.start_ms is not None:
            heapq.heappush(self._ends, (self._window.span(key.start_ms).end_ms, key))
