"""The compare-and-set loop that changes a record until the change is stored or is no longer needed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import BadVersionError, ConnectionLossError
from heliograph.metadata.model import Versioned
from heliograph.metadata.store import MetadataStore

R = TypeVar("R")

ATTEMPTS_MAX = 100  # rounds of one update, conflicts and lost replies together
CONNECTION_LOSSES_MAX = 5  # of one update
PAUSE_SECONDS_MAX = 0.05  # between rounds, random so that concurrent updates spread


async def read(store: MetadataStore, path: str, kind: type[R]) -> Versioned[R]:
    """Return the record at ``path`` with its version.

    Raises:
        NoNodeError, RecordError, ConnectionLossError, SessionExpiredError.
    """
    value, stat = await store.get(path)
    return Versioned(decode(kind, value), stat.version)


async def update(store: MetadataStore, path: str, kind: type[R], change: Callable[[R], R | None]) -> Versioned[R]:
    """Replace the record at ``path`` by ``change`` of it, with compare-and-set.

    ``change`` takes the present record and returns the new one, or None for "nothing left to do". It is called again
    after every conflict and after every lost reply, so it must check for the exact state that it acts on: after its own
    earlier success it must return None. An error that it raises passes through and ends the update. # I9

    Returns:
        The present record with its version: the changed record, or the record found when nothing was left to do.

    Raises:
        NoNodeError, RecordError, SessionExpiredError: nothing more was changed.
        BadVersionError: ATTEMPTS_MAX conflicts in a row; nothing was changed.
        ConnectionLossError: the connection was lost more than CONNECTION_LOSSES_MAX times; the outcome is unknown.
    """
    losses = 0
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(random.uniform(0, PAUSE_SECONDS_MAX) * min(attempt, 10) / 10)
        try:
            current = await read(store, path, kind)
            wanted = change(current.record)
            if wanted is None:
                return current
            stat = await store.set(path, encode(wanted, path), current.version)  # I9
            return Versioned(wanted, stat.version)
        except BadVersionError:
            continue
        except ConnectionLossError:
            losses += 1
            if losses > CONNECTION_LOSSES_MAX:
                raise
    raise BadVersionError(f"{path} changed {ATTEMPTS_MAX} times while it was being updated")
