"""Tests of topics in the simulator: clean seeds, coroutines in simulated time."""

from __future__ import annotations

import asyncio
import os

import pytest

from heliograph.actors.broker.records.position import Position
from tests.simulation.__main__ import main
from tests.simulation.campaign import run_plan
from tests.simulation.faults.fault import KINDS
from tests.simulation.profile import DELETION, TOPIC, Plan
from tests.simulation.topic.faults import OWNERS_OWN, TOPIC_KINDS
from tests.simulation.topic.history import Ack, Acked
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Process, World

SEEDS = int(os.environ.get("HELIOGRAPH_SIM_SEEDS", "50")) // 2  # a topic's run costs more than a ledger's
SEEDS_PER_TEST = 5
DELETION_SEEDS = SEEDS // 4


@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(start: int) -> None:
    failures = []
    for seed in range(start, min(start + SEEDS_PER_TEST, SEEDS)):
        plan = Plan(seed, world=TOPIC)
        report = run_plan(plan)
        if report.failure:
            failures.append(f"python -m tests.simulation {plan.arguments()}: {report.failure}")
        assert report.confirmed, "something is published in every run"
    assert not failures, "\n".join(failures)


def test_deletions_are_clean() -> None:
    for seed in range(DELETION_SEEDS):
        plan = Plan(seed, world=DELETION)
        report = run_plan(plan)
        assert not report.failure, f"python -m tests.simulation {plan.arguments()}: {report.failure}"
        assert report.counts["record deleted"], "something is deleted in every run"


def test_kinds_of_faults() -> None:
    names = [kind.name for kind in TOPIC_KINDS]
    assert len(names) == len(set(names))
    assert {kind.name for kind in KINDS} - set(names) == OWNERS_OWN


def test_a_failure_is_told_with_the_world_it_happened_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutant", "skip-draining", "--seeds", "20"]) == 0
    told = capsys.readouterr().out
    assert "I16" in told
    shrunk = next(line for line in told.splitlines() if line.startswith("shrunk:"))
    assert "--world topic" in shrunk
    assert main(["--seed", "2", "--world", "topic"]) == 0


# The loop


def settle(world: World) -> None:
    while world.step():
        pass


def test_coroutines_run_in_simulated_time() -> None:
    world, process, seen = World(0), Process("broker"), list[tuple[str, int]]()
    loop = SimulatedLoop(world, process)

    async def late() -> None:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(0.2)
        seen.append(("slept", world.now))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await loop.create_future()
        seen.append(("gave up", world.now))

    with loop.running():
        loop.create_task(late())
    world.after(100, lambda: setattr(process, "paused_until", 250))  # it stands still when its timer is due
    settle(world)
    assert seen == [("slept", 250), ("gave up", 350)]


def test_a_crash_ends_coroutines_where_they_stand() -> None:
    world, process, seen = World(0), Process("broker"), list[str]()
    loop = SimulatedLoop(world, process)

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(1)
            seen.append(f"{name} went on")
        finally:
            seen.append(f"{name} ended")

    with loop.running():
        for name in ("first", "second"):
            loop.create_task(work(name))
    world.after(500, process.crash)
    world.after(500, loop.die)
    settle(world)
    assert seen == ["first ended", "second ended"]


def test_a_broken_promise_in_a_task_is_a_finding() -> None:
    world, process = World(0), Process("broker")
    loop = SimulatedLoop(world, process)

    async def work() -> None:
        raise AssertionError("a promise of ours")

    with loop.running():
        loop.create_task(work())
    with pytest.raises(AssertionError, match="a promise of ours"):
        settle(world)


# Acknowledgements, as the checkers count them


def test_acknowledgements_add_up() -> None:
    acked, place = Acked(), Position(3, 5)
    acked.add(Ack(place, 0b110, is_cumulative=False))
    assert not acked.covers(place)
    acked.add(Ack(place, 0b001, is_cumulative=False))
    assert acked.covers(place)
    acked.add(Ack(Position(4, 2), 0b10, is_cumulative=True))
    assert acked.covers(Position(3, 9))
    assert acked.covers(Position(4, 1))
    assert not acked.covers(Position(4, 2))
