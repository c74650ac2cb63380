"""The roster and the wishes in the metadata store."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from heliograph.base.clock import wall_ms
from heliograph.cluster.operator import wishes
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.model import Versioned
from heliograph.metadata.operator_records import Roster, Wish, WishKind, WishState
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import MetadataStore


async def load_roster(store: MetadataStore) -> Roster | None:
    """Return the roster; None if the cluster has none yet.

    Raises:
        RecordError: it is damaged, or of a newer version.
        MetadataError: the store failed.
    """
    try:
        return (await read(store, paths.ROSTER, Roster)).record
    except NoNodeError:
        return None


async def save_roster(store: MetadataStore, roster: Roster) -> None:
    """Store the roster. Only the operator that leads calls this, or ``helio up`` while there is none.

    Raises:
        MetadataError: the outcome is unknown; storing it again is safe.
    """
    value = codec.encode(roster)
    try:
        await store.set(paths.ROSTER, value)
    except NoNodeError:
        with contextlib.suppress(NodeExistsError):
            await store.create(paths.ROSTER, value, parents=True)


async def load_wishes(store: MetadataStore) -> list[Wish]:
    """Return the open wishes, and the wishes that ended lately.

    Raises:
        MetadataError: the store failed.
    """
    found = []
    with contextlib.suppress(NoNodeError):
        for name in await store.children(paths.WISHES):
            with contextlib.suppress(RecordError):  # of a later release, whose operator carries it out
                if (wish := await load_wish(store, paths.last_part(f"/{name}"))) is not None:
                    found.append(wish)
    return sorted(found, key=lambda wish: wish.asked_ms)


async def moving(store: MetadataStore) -> frozenset[str]:
    """Return the bookies that are being copied elsewhere, and are started when that is over."""
    found = await load_wishes(store)
    return frozenset(each.subject for each in found if each.kind is WishKind.MOVE and each.state is WishState.ACCEPTED)


async def load_wish(store: MetadataStore, subject: str) -> Wish | None:
    """Return the wish for a subject; None if there is none.

    Raises:
        RecordError: it is damaged, or of a newer version.
        MetadataError: the store failed.
    """
    try:
        return (await read(store, paths.wish(subject), Wish)).record
    except NoNodeError:
        return None


async def store_wish(store: MetadataStore, wish: Wish) -> Wish:
    """Store a wish durably and return it, or return the equal wish that is open already. May be repeated.

    Raises:
        ConflictError: an open wish excludes it.
        MetadataError: the store failed; the outcome is unknown.
    """
    path = paths.wish(wish.subject)
    while True:
        present: Versioned[Wish] | None = None
        with contextlib.suppress(NoNodeError):
            present = await read(store, path, Wish)
        same = present.record if present is not None and wishes.is_same(wish, present.record) else None
        if same is not None and same.asked_ms == wish.asked_ms:
            return same  # whatever became of it since it was stored
        wishes.require_possible(wish, await load_wishes(store))
        if same is not None and same.state in wishes.OPEN:
            return same
        with contextlib.suppress(BadVersionError, NodeExistsError, NoNodeError):  # I9
            if present is None:
                await store.create(path, codec.encode(wish), parents=True)
            else:
                await store.set(path, codec.encode(wish), present.version)
            return wish


async def move_wish(
    store: MetadataStore, wish: Wish, state: WishState, note: str, outcome: dict[str, Any] | None = None
) -> None:
    """Store how far a wish is, unless another took its place, or it has ended by the word of an earlier operator.

    Raises:
        MetadataError: the store failed; storing it again is safe.
    """

    def moved(now: Wish) -> Wish | None:
        if now.asked_ms != wish.asked_ms or not wishes.is_same(now, wish) or now.state not in wishes.OPEN:
            return None
        to = now.state if now.state is state else wishes.WISH_LIFE.move(now.state, state)
        made = replace(now, state=to, note=note, outcome=now.outcome if outcome is None else outcome)
        if made == now:
            return None
        return made if to in wishes.OPEN else replace(made, ended_ms=wall_ms())

    with contextlib.suppress(NoNodeError):
        await update(store, paths.wish(wish.subject), Wish, moved)


async def delete_wish(store: MetadataStore, wish: Wish) -> None:
    """Delete a wish that has ended, unless another took its place."""
    with contextlib.suppress(NoNodeError, BadVersionError):
        present = await read(store, paths.wish(wish.subject), Wish)
        if present.record == wish:
            await store.delete(paths.wish(wish.subject), present.version)
