"""Helpers of the tests of ledger cores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from heliograph.actors.ledger.effects import Effect, LedgerEntry
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment, Versioned

E = TypeVar("E")


def ledger(
    bookies: str = "b1 b2 b3",
    write_quorum: int | None = None,
    ack_quorum: int = 2,
    state: LedgerState = LedgerState.OPEN,
    last: int = -1,
    more_segments: tuple[Segment, ...] = (),
) -> Versioned[LedgerMetadata]:
    names = tuple(bookies.split())
    record = LedgerMetadata(
        1,
        len(names),
        write_quorum or len(names),
        ack_quorum,
        (Segment(0, names), *more_segments),
        state=state,
        last_entry_id=last,
        length=last + 1 if state is LedgerState.CLOSED else 0,
    )
    return Versioned(record, 0)


def entry(entry_id: int, payload: bytes = b"x") -> LedgerEntry:
    return LedgerEntry(entry_id, payload, entry_id + 1, entry_id - 1)


def only(kind: type[E], effects: Sequence[Effect]) -> E:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, effects
    return found[0]


def some(kind: type[E], effects: Sequence[Any]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class Spares:
    """A chooser that returns the given bookies in order."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.available: set[str] = set()
        self.failures: list[str] = []

    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        left = [name for name in self.names if name not in {*ensemble, *excluded}]
        return dict(zip(failed, left, strict=False))

    def is_available(self, bookie_id: str) -> bool:
        return bookie_id in self.available

    def note_failure(self, bookie_id: str, now: int) -> None:
        self.failures.append(bookie_id)
