"""The life of an object as a table (pure): an enum names its states, the table says what each state means and which
states may follow it.

The object keeps its state in an ordinary attribute, so that a hot path reads it with one attribute access and an ``is``
comparison; only a change of state goes through the table. ARCHITECTURE.md draws every table in its section "States".
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)


class Lifecycle(Generic[S]):
    """The states of one class of objects and the legal moves between them.

    Args:
        table: for every member of the enum what the state means and which states may follow it, none after a final
            state.
    """

    def __init__(self, table: Mapping[S, tuple[str, Collection[S]]]) -> None:
        self.states = type(next(iter(table)))
        assert list(table) == list(self.states), f"{self.states.__name__}: the table has one row for each state"
        self.meanings: Mapping[S, str] = {state: meaning for state, (meaning, _) in table.items()}
        self.moves: Mapping[S, frozenset[S]] = {state: frozenset(moves) for state, (_, moves) in table.items()}

    def move(self, state: S, to: S) -> S:
        """Return ``to``. An illegal move is a broken promise of our own: AssertionError."""
        assert to in self.moves[state], f"{self.states.__name__}: {state.name} may not become {to.name}"
        return to
