"""A cluster that the tests of this folder share, names of its own for each test, and processors that run in it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import heliograph
from heliograph.processors.deployment import ProcessorDeployment

SECONDS = 100  # for what is to happen at once


@pytest.fixture
def name() -> str:
    """Return the name of a processor, and of its input, that no other test has."""
    return f"sum-{uuid.uuid4().hex[:12]}"


Made = Callable[..., ProcessorDeployment]
Begin = Callable[..., asyncio.Task[None]]


@pytest.fixture
def made(client: heliograph.Client, name: str) -> Made:
    """Return ``heliograph.process`` of the test's input, with short pauses, unless options say otherwise."""

    def make(kind: Any, *topics: str, **options: Any) -> ProcessorDeployment:
        options = {"name": name, "client": client, "commit_every": 0.02, "backoff": (0.01, 0.05), **options}
        return heliograph.process(list(topics) or name, kind, **options)

    return make


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    """Return what runs a processor in this loop; the end of the test ends it."""
    working: list[asyncio.Task[None]] = []

    def begin(deployment: ProcessorDeployment, instance: int | None = None) -> asyncio.Task[None]:
        working.append(asyncio.get_running_loop().create_task(deployment.work(instance)))
        return working[-1]

    yield begin
    for each in working:
        await ended(each)


async def ended(working: asyncio.Task[None]) -> None:
    """End a processor as Ctrl-C does: what was handled is committed."""
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError, heliograph.errors.HeliographError):
        await working


async def read(client: heliograph.Client, topic: str, count: int, **options: Any) -> list[heliograph.Message[Any]]:
    """Return the first messages of a topic, as soon as there are so many."""
    async with heliograph.AsyncClient(client.options) as own, own.reader(topic, "earliest", **options) as reader:
        found: list[heliograph.Message[Any]] = []
        async with asyncio.timeout(SECONDS):
            while len(found) < count:
                found += await reader.receive_many(count - len(found))
        return found
