"""Messages under way in a script: one for each target of each request effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heliograph.actors.ledger.effects import (
    DeleteMetadata,
    Effect,
    ListEntries,
    ReadBatch,
    ReadEntry,
    ReadLac,
    ReadMetadata,
    Reply,
    SendAdd,
    SendCopy,
    SendLac,
    WriteMetadata,
)
from tests.scripts.bookies import ScriptBookie, ScriptStore, entry_of

STORE = "store"


@dataclass
class Message:
    """One request, later with its result, and the function that takes the answer."""

    sender: str
    target: str
    what: str  # kind and number, as in the trace
    at_target: Callable[[], Any]
    on_answer: Callable[[Any], list[Effect]]
    unknown: Any  # the result if there is no answer
    result: Any = None
    has_arrived: bool = False
    tags: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tags = {self.sender, self.target, *self.what.split()}


def messages_of(
    sender: str, core: Any, effect: Effect, bookies: dict[str, ScriptBookie], store: ScriptStore, now: Callable[[], int]
) -> Iterator[Message]:
    """Return the messages that an effect sends, none for a report."""
    match effect:
        case SendAdd():
            for position, bookie_id in effect.targets:
                yield Message(
                    sender,
                    bookie_id,
                    f"add {effect.entry_id}",
                    partial(bookies[bookie_id].add, entry_of(effect), effect.recovery),
                    partial(_on_add, core, effect, position, now),
                    Reply.UNKNOWN,
                )
        case SendCopy():
            yield Message(
                sender,
                effect.bookie_id,
                f"copy {effect.entry.entry_id}",
                partial(bookies[effect.bookie_id].add, effect.entry, True),
                lambda reply: core.on_copy_answer(effect.entry.entry_id, effect.bookie_id, reply, now()),
                Reply.UNKNOWN,
            )
        case SendLac():
            for bookie_id in effect.bookies:
                told = partial(_tell, bookies[bookie_id], effect.last_add_confirmed)
                yield Message(sender, bookie_id, f"lac {effect.last_add_confirmed}", told, lambda _: [], Reply.UNKNOWN)
        case ReadLac():
            for position, bookie_id in effect.targets:
                yield Message(
                    sender,
                    bookie_id,
                    "fence" if effect.fence else "read-lac",
                    partial(bookies[bookie_id].read_lac, effect.fence),
                    partial(_on_lac, core, position, now),
                    (Reply.UNKNOWN, -1, None),
                )
        case ReadEntry():
            for position, bookie_id in effect.targets:
                yield Message(
                    sender,
                    bookie_id,
                    f"read {effect.entry_id}",
                    partial(bookies[bookie_id].read, effect.entry_id, effect.fence),
                    partial(_on_entry, core, effect.entry_id, position, now),
                    (Reply.UNKNOWN, None),
                )
        case ReadBatch():
            yield Message(
                sender,
                effect.bookie_id,
                f"batch {effect.first_entry_id}-{effect.last_entry_id}",
                partial(bookies[effect.bookie_id].read_batch, effect),
                lambda result: core.on_batch_answer(effect.request, *result, now()),
                (Reply.UNKNOWN, []),
            )
        case ListEntries():
            yield Message(
                sender,
                effect.bookie_id,
                "list",
                bookies[effect.bookie_id].runs,
                lambda result: core.on_entries_listed(effect.bookie_id, *result, now()),
                (Reply.UNKNOWN, ()),
            )
        case _:
            yield from _store_messages(sender, core, effect, store, now)


def _store_messages(
    sender: str, core: Any, effect: Effect, store: ScriptStore, now: Callable[[], int]
) -> Iterator[Message]:
    def answer(result: tuple[str, Any]) -> list[Effect]:
        assert isinstance(effect, WriteMetadata | ReadMetadata | DeleteMetadata)
        event, value = result
        method = getattr(core, f"on_metadata_{event}")
        effects: list[Effect] = (
            method(effect.request, value, now()) if event in ("written", "read") else method(effect.request, now())
        )
        return effects

    unknown = ("unknown", None)
    match effect:
        case WriteMetadata():
            write = partial(store.write, effect.record, effect.version)
            yield Message(sender, STORE, f"write v{effect.version}", write, answer, unknown)
        case ReadMetadata():
            yield Message(sender, STORE, "read-record", lambda: _read(store), answer, unknown)
        case DeleteMetadata():
            yield Message(sender, STORE, "delete", lambda: _delete(store), answer, unknown)
        case _:
            return


def _on_add(core: Any, effect: SendAdd, position: int, now: Callable[[], int], reply: Reply) -> list[Effect]:
    effects: list[Effect] = core.on_add_answer(effect.entry_id, position, effect.epoch, reply, now())
    return effects


def _on_lac(core: Any, position: int, now: Callable[[], int], result: tuple[Any, ...]) -> list[Effect]:
    effects: list[Effect] = core.on_lac_answer(position, *result, now())
    return effects


def _on_entry(core: Any, entry_id: int, position: int, now: Callable[[], int], result: tuple[Any, ...]) -> list[Effect]:
    effects: list[Effect] = core.on_entry_answer(entry_id, position, *result, now())
    return effects


def _tell(bookie: ScriptBookie, last_add_confirmed: int) -> Reply:
    bookie.explicit_lac = max(bookie.explicit_lac, last_add_confirmed)
    return Reply.OK


def _read(store: ScriptStore) -> tuple[str, Any]:
    return ("missing", None) if store.record is None else ("read", store.versioned)


def _delete(store: ScriptStore) -> tuple[str, Any]:
    store.record = None
    return "deleted", None
