"""The operator carries out wishes in the order in which they were asked, and stores the progress of each.

Each open wish has a task of its own, so that one that waits delays no other. All that lasts is in the metadata, so
another operator goes on where one ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from logging import DEBUG, ERROR
from typing import Any

from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import ConflictError, HeliographError, ServiceNotReadyError
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.storage import delete_wish, load_wishes, move_wish
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.operator_records import Wish, WishKind, WishState
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

Outcome = dict[str, Any]  # what programs are told of a wish; one of several steps finds there how far it is


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a wish: whether it is done, a line for people, and the facts for programs."""

    is_done: bool
    note: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Way:
    """How wishes of one kind are carried out. Both may be repeated, and raise what refuses the wish.

    Attributes:
        begin: checks the wish, and returns the first outcome.
        look: takes the next step, or finds out how far it is.
    """

    begin: Callable[[Wish], Awaitable[Outcome]]
    look: Callable[[Wish], Awaitable[Progress]]


def by_subject(kind: str, way: Way, other: Way) -> Way:
    """Return how wishes are carried out ``way`` if they are for a part of a kind, and the other way if not."""

    def of(wish: Wish) -> Way:
        return way if kind_of(wish.subject) == kind else other

    return Way(lambda wish: of(wish).begin(wish), lambda wish: of(wish).look(wish))


class Granting:
    """The wishes of one metadata session."""

    def __init__(
        self, store: MetadataStore, ways: Mapping[WishKind, Way], refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """
        Args:
            refresh: writes the report, before a wish is said to be done: ``helio status`` shows what it has changed.
        """
        self._store = store
        self._refresh = refresh
        self._ways = ways
        self._tasks: dict[str, tuple[int, asyncio.Task[None]]] = {}  # by subject, at most one each: when it was asked

    async def look(self) -> None:
        """Begin the next step of each open wish without a running one, and forget wishes that ended long ago.

        Raises:
            MetadataError: the store failed; to be repeated.
        """
        found = await load_wishes(self._store)
        asked = {wish.subject: wish.asked_ms for wish in found if wish.state in wishes.OPEN}
        for subject, (asked_ms, task) in list(self._tasks.items()):
            if task.done() or asked.get(subject) != asked_ms:  # another one took its place
                await self._end(subject)
        for number, wish in enumerate(found):
            if wish.state not in wishes.OPEN:
                if wall_ms() - wish.ended_ms > wishes.KEPT_MS:
                    await delete_wish(self._store, wish)
            elif wish.subject not in self._tasks:
                if wish.state is WishState.ASKED:
                    try:
                        wishes.require_possible(wish, found[:number])
                    except ConflictError as error:
                        await self._refuse(wish, error)
                        continue
                task = asyncio.get_running_loop().create_task(self._step(wish), name=wishes.title(wish))
                self._tasks[wish.subject] = wish.asked_ms, task

    async def stop(self) -> None:
        """End the tasks. The next operator goes on with the wishes."""
        for subject in list(self._tasks):
            await self._end(subject)

    async def _end(self, subject: str) -> None:
        if (known := self._tasks.pop(subject, None)) is not None:
            await end_task(known[1])

    async def _step(self, wish: Wish) -> None:
        with contextlib.suppress(MetadataError):  # the end of the session shows in the next look
            await self._try(wish)

    async def _try(self, wish: Wish) -> None:
        way = self._ways[wish.kind]
        try:
            if wish.state is WishState.ASKED:
                outcome = await way.begin(wish)
                log.warning("%s is accepted", wishes.title(wish))
                await move_wish(self._store, wish, WishState.ACCEPTED, "", outcome)
                wish = replace(wish, state=WishState.ACCEPTED, note="", outcome=outcome)
            now = await way.look(wish)
            if now.is_done:
                with contextlib.suppress(ServiceNotReadyError):  # of Ray: the wish is done nevertheless
                    await self._refresh()
        except (MetadataError, ServiceNotReadyError) as error:  # of a record, or of another part's session
            await self._note(wish, error)
        except HeliographError as error:
            await self._refuse(wish, error)
        except Exception as error:  # a fault of ours ends no other wish
            log.log(
                DEBUG if str(error) in wish.note else ERROR, "%s: a step failed", wishes.title(wish), exc_info=error
            )
            await self._note(wish, error)
        else:
            if now.is_done:
                log.warning("%s is done", wishes.title(wish))
            state = WishState.DONE if now.is_done else WishState.ACCEPTED
            await move_wish(self._store, wish, state, now.note, now.outcome)

    async def _note(self, wish: Wish, error: Exception) -> None:
        await move_wish(self._store, wish, wish.state, f"{error}; it is tried again")

    async def _refuse(self, wish: Wish, error: HeliographError) -> None:
        log.warning("%s is refused: %s", wishes.title(wish), error)
        outcome = {**wish.outcome, "error": wishes.refusal_name(error), "field": error.field}
        await move_wish(self._store, wish, WishState.REFUSED, str(error), outcome)
