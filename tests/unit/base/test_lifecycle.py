"""A table of states lets legal moves pass and stops the others."""

from __future__ import annotations

import enum
from collections.abc import Collection

import pytest

from heliograph.base.lifecycle import Lifecycle


class Door(enum.Enum):
    OPEN = 1
    SHUT = 2
    WALLED = 3


TABLE: dict[Door, tuple[str, Collection[Door]]] = {
    Door.OPEN: ("One can pass.", {Door.SHUT}),
    Door.SHUT: ("One cannot pass.", {Door.OPEN, Door.WALLED}),
    Door.WALLED: ("There is no door any more.", ()),
}


def test_a_legal_move_gives_the_new_state() -> None:
    assert Lifecycle(TABLE).move(Door.OPEN, Door.SHUT) is Door.SHUT


@pytest.mark.parametrize(("state", "to"), [(Door.OPEN, Door.OPEN), (Door.OPEN, Door.WALLED), (Door.WALLED, Door.SHUT)])
def test_an_illegal_move_is_a_broken_promise(state: Door, to: Door) -> None:
    with pytest.raises(AssertionError, match=f"Door: {state.name} may not become {to.name}"):
        Lifecycle(TABLE).move(state, to)


def test_a_table_without_all_states_is_refused() -> None:
    with pytest.raises(AssertionError, match="one row for each state"):
        Lifecycle({Door.OPEN: TABLE[Door.OPEN], Door.SHUT: TABLE[Door.SHUT]})
