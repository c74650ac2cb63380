"""A cluster that the tests of this folder share, and a queue of its own for each test."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import heliograph
from heliograph.tasks.task import Task


@pytest.fixture
def queue() -> str:
    """Return the name of a queue that no other test has."""
    return f"queue-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def made(client: heliograph.Client, queue: str) -> Callable[..., Callable[..., Task[Any, Any]]]:
    """Return ``heliograph.task`` with the queue, the client and short pauses, unless options say otherwise."""

    def make(**options: Any) -> Callable[..., Task[Any, Any]]:
        return heliograph.task(**{"queue": queue, "client": client, "backoff": (0.01, 0.05), **options})

    return make


@pytest.fixture
async def begin() -> AsyncIterator[Callable[..., asyncio.Task[None]]]:
    """Return what begins a worker of the given tasks; the end of the test ends it."""
    working: list[asyncio.Task[None]] = []

    def begin(task: Task[Any, Any], *others: Task[Any, Any], name: str | None = None) -> asyncio.Task[None]:
        working.append(asyncio.get_running_loop().create_task(task.work(*others, name=name)))
        return working[-1]

    yield begin
    for each in working:
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each
