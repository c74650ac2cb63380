"""Work that is done as a whole once it was begun, though whoever asked for it may be gone before its end.

The requests of a connection are cancelled when it is lost. What must not stop half-way runs in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")

_running: set[asyncio.Task[Any]] = set()  # the loop itself holds tasks weakly


async def whole(work: Coroutine[Any, Any, R]) -> R:
    """The result of ``work``, which goes on if the caller is cancelled. Raises what it raises."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)
