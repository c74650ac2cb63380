"""The roster in the metadata store."""

from __future__ import annotations

import contextlib

from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.operator_records import Roster
from heliograph.metadata.recipes.update_loop import read
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
