"""Reading a record and changing it by compare-and-set, until the change holds or is no longer wanted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from metadata.codec import decode, encode
from metadata.errors import BadVersionError, ConnectionLossError
from metadata.model import Versioned
from metadata.store import MetadataStore

R = TypeVar("R")

ATTEMPTS_MAX = 100  # rounds of one update, conflicts and lost replies together
CONNECTION_LOSSES_MAX = 5  # of one update
PAUSE_SECONDS_MAX = 0.05  # between rounds, drawn at random so that rivals part


async def read(store: MetadataStore, path: str, kind: type[R]) -> Versioned[R]:
    """The record at ``path`` with its version.

    Raises:
        NoNodeError, RecordError, ConnectionLossError, SessionExpiredError.
    """
    value, stat = await store.get(path)
    return Versioned(decode(kind, value), stat.version)


async def update(store: MetadataStore, path: str, kind: type[R], change: Callable[[R], R | None]) -> Versioned[R]:
    """Replace the record at ``path`` by ``change`` of it, unless somebody else changed it in between.

    ``change`` gets the record as it is now and returns the new one, or None for "nothing left to do". It is called
    again after every conflict and after every lost reply, so it must name the exact state that it may act on: its own
    success, seen again, has to be "nothing left to do". It may raise to give up; that passes through.  # I9

    Returns:
        the record as it stands, with its version: the changed one, or the one found when nothing was left to do.

    Raises:
        NoNodeError, RecordError, SessionExpiredError: nothing more was changed.
        BadVersionError: lost ATTEMPTS_MAX races in a row; nothing was changed.
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
            stat = await store.set(path, encode(wanted), current.version)  # I9
            return Versioned(wanted, stat.version)
        except BadVersionError:
            continue
        except ConnectionLossError:
            losses += 1
            if losses > CONNECTION_LOSSES_MAX:
                raise
    raise BadVersionError(f"{path} changed {ATTEMPTS_MAX} times while it was being updated")
