"""How the operator answers wishes: it takes them up in the order of asking, and stores how far each one is.

All that lasts is in the metadata, so another operator goes on where one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConflictError, HeliographError, ServiceNotReadyError
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.storage import delete_wish, load_wishes, move_wish
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.operator_records import Wish, WishKind, WishState
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a wish is: whether it is carried out, a line for people, and what programs are told."""

    is_done: bool
    note: str
    outcome: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """How wishes of one kind are carried out. ``begin`` may be repeated, and raises what refuses the wish."""

    begin: Callable[[Wish], Awaitable[None]]
    look: Callable[[Wish], Awaitable[Progress]]


class Granting:
    """The wishes of one metadata session."""

    def __init__(self, store: MetadataStore, ways: Mapping[WishKind, Way]) -> None:
        self._store = store
        self._ways = ways

    async def look(self) -> None:
        """Take up what was asked for, and store how far the others are.

        Raises:
            MetadataError: the store failed; to be repeated.
        """
        found = await load_wishes(self._store)
        for number, wish in enumerate(found):
            if wish.state is WishState.ASKED:
                await self._take_up(wish, found[:number])
            elif wish.state is WishState.ACCEPTED:
                await self._go_on(wish)
            elif wall_ms() - wish.ended_ms > wishes.KEPT_MS:
                await delete_wish(self._store, wish)

    async def _take_up(self, wish: Wish, earlier: Sequence[Wish]) -> None:
        try:
            wishes.require_possible(wish, earlier)
            await self._ways[wish.kind].begin(wish)
        except (MetadataError, ServiceNotReadyError) as error:  # of a record, or of another part's session
            await move_wish(self._store, wish, WishState.ASKED, f"{error}; it is tried again")
        except HeliographError as error:
            await self.refuse(wish, error)
        else:
            log.warning("%s is accepted", wishes.title(wish))
            await move_wish(self._store, wish, WishState.ACCEPTED, "")
            await self._go_on(wish)

    async def refuse(self, wish: Wish, error: HeliographError) -> None:
        """End an open wish with an error that its caller gets."""
        log.warning("%s is refused: %s", wishes.title(wish), error)
        outcome = {"error": wishes.refusal_name(error), "field": error.field}
        await move_wish(self._store, wish, WishState.REFUSED, str(error), outcome)

    async def _go_on(self, wish: Wish) -> None:
        try:
            now = await self._ways[wish.kind].look(wish)
        except ConflictError as error:
            await self.refuse(wish, error)
            return
        except HeliographError as error:  # it is looked at again; the end of this session shows in the next line
            await move_wish(self._store, wish, WishState.ACCEPTED, str(error))
            return
        if now.is_done:
            log.warning("%s is done", wishes.title(wish))
        state = WishState.DONE if now.is_done else WishState.ACCEPTED
        await move_wish(self._store, wish, state, now.note, now.outcome)
