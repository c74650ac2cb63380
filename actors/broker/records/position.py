"""A position in a topic: (ledger id, entry id), ordered as the topic is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

_U64 = 1 << 64
_I63_MAX = (1 << 63) - 1


class Position(NamedTuple):
    """The position of an entry; ``entry_id`` -1 is before the first entry of the ledger."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


# Makes a position of a tuple, as the class does, but without a call of Python.
new_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)

EARLIEST = Position(-1, -1)
LATEST = Position(_I63_MAX, _I63_MAX)
NOWHERE = Position(-1, -1)  # in the receipt of a duplicate, which was not stored again


def from_unsigned(ledger_id: int, entry_id: int) -> Position:
    """Return the position in a Pulsar message id, whose fields are u64 on the wire (2**64 - 1 stands for -1)."""
    if ledger_id < _I63_MAX >= entry_id:  # as almost every id has them
        return new_position((ledger_id, entry_id))
    ledger = ledger_id - _U64 if ledger_id > _I63_MAX else ledger_id
    entry = entry_id - _U64 if entry_id > _I63_MAX else entry_id
    if ledger == _I63_MAX:
        return LATEST
    if ledger < 0:
        return EARLIEST
    return Position(ledger, entry)


def to_unsigned(number: int) -> int:
    """Return a ledger or entry id as u64 for the wire."""
    return number % _U64
