"""Parts of a shared process, of toy classes: one that fails is made again alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray.cloudpickle

from heliograph.base.addressing import part_handle
from heliograph.base.processes import end_of_part
from heliograph.cluster.shared_process import SharedParts
from tests.waits import until

MADE: list[Toy] = []


class Toy:
    """A part. Its stops raise what ``stop_failure`` says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.end = end_of_part()
        self.stops: list[str] = []
        self.stop_failure: Exception | None = None
        MADE.append(self)

    async def start(self) -> str:
        return self.name

    async def stop(self) -> None:
        self.stops.append("stop")

    async def _hosted_stop(self) -> None:
        self.stops.append("_hosted_stop")
        if self.stop_failure is not None:
            raise self.stop_failure

    async def number(self) -> int:
        return MADE.index(self)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The exits of the process, which the test survives."""
    MADE.clear()
    dumps: Any = ray.cloudpickle.dumps
    made_of = {name: dumps((Toy, (name,))) for name in ("bookie-1", "operator")}
    monkeypatch.setattr(part_handle, "described", lambda namespace: set(made_of))
    monkeypatch.setattr(part_handle, "description", lambda name, namespace: made_of.get(name))
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    yield found
    MADE.clear()


async def served(parts: SharedParts, name: str) -> int:
    return int(await parts.call(name, "number", (), {}))


def test_a_part_that_fails_is_made_again_and_the_others_go_on(exits: list[int]) -> None:
    asyncio.run(_failing_part())
    assert exits == []


async def _failing_part() -> None:
    parts = SharedParts("any")
    bookie, operator = [await served(parts, name) for name in ("bookie-1", "operator")]
    failed = MADE[operator]
    failed.end()
    failed.end()  # it fails once, however often it says so
    await until(lambda: len(MADE) == 3)
    assert await served(parts, "operator") == 2
    assert await served(parts, "bookie-1") == bookie
    assert failed.stops == ["_hosted_stop"]  # no orderly one, after which its starts would be forgotten
    assert MADE[bookie].stops == []
    failed.end()  # the one that is gone ends nothing
    await parts.stop()
    assert len(MADE) == 3


def test_a_part_that_cannot_be_stopped_ends_the_process(exits: list[int]) -> None:
    asyncio.run(_stuck_part(exits))
    assert exits == [1]


async def _stuck_part(exits: list[int]) -> None:
    parts = SharedParts("any")
    failed = MADE[await served(parts, "bookie-1")]
    failed.stop_failure = OSError("the journal is stuck")
    failed.end()
    await until(lambda: exits)
    await parts.stop()
