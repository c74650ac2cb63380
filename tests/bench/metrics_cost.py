"""What metrics cost a broker with many topics: processor time of one scrape, and of what each entry adds.

Topics are in memory, so that the metrics alone are measured, most of them in processor time.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import Any

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import SplitLimits
from heliograph.actors.broker.topic.series import PASS_SECONDS
from heliograph.metrics.exposition import exposition
from heliograph.metrics.metric import LATENCY_BOUNDS, SIZE_BOUNDS, Histogram
from heliograph.metrics.parts import of_broker, of_topics
from heliograph.metrics.table import METRICS
from heliograph.protocol.topic_name import TopicName
from tests.bench.bench import Bench
from tests.bench.figure import Aim, Limit
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.topic_world import publish

TOPICS, MESSAGES_PER_SECOND, SCRAPE_SECONDS = 10_000, 20_000, 15.0
SCRAPES = 5
SECTION = "metrics of a broker"
SCRAPE_MS_MAX, STEP_MS_MAX, CORE_SHARE_MAX = 300, 20, 0.01


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    topics = bench.count(TOPICS)
    bench.say(f"measuring the metrics of {topics:,} topics")
    found = asyncio.run(_measure(topics))
    size = {"topics": topics, "bytes": int(found["bytes"])}
    for name, key, most in (
        ("scrape, with a look at all topics", "first_wall_ms", SCRAPE_MS_MAX),
        ("scrape", "wall_ms", SCRAPE_MS_MAX),
        ("scrape, longest step of the event loop", "turn_ms", STEP_MS_MAX),
    ):
        bench.add(SECTION, name, found[key], "ms", Limit(most, f"{most} ms"), aim=Aim(most, at_most=True), **size)
    bench.add(
        SECTION,
        f"share of a core, a scrape each {SCRAPE_SECONDS:.0f} s and {MESSAGES_PER_SECOND:,} entries/s",
        found["scrape_cpu_ms"] / 1_000 / SCRAPE_SECONDS + found["entry_us"] / 1e6 * MESSAGES_PER_SECOND,
        "cores",
        Limit(CORE_SHARE_MAX, "1 %"),
        aim=Aim(CORE_SHARE_MAX, at_most=True),
        entry_us=found["entry_us"],
        scrape_cpu_ms=found["scrape_cpu_ms"],
    )


async def _measure(topics: int) -> dict[str, float]:
    """Return the figures for a broker with so many topics, each with a subscription that has a backlog of one."""
    names = [f"topic-{number}" for number in range(topics)]
    async with LoneBroker(*names, housekeeping_seconds=3_600.0, split=SplitLimits(topics=0)) as lone:
        for name in names:
            topic = await lone.broker.topics.get(TopicName.parse(name), may_create=True)
            await topic.subscribe("s", start=0)
            await publish(topic.ledger, "k")
        costs = [await _scrape(lone.broker) for _ in range(SCRAPES)]
    # All topics are looked at once in a minute, which is a part of each scrape.
    share = SCRAPE_SECONDS / PASS_SECONDS
    usual = min(costs[1:], key=lambda cost: cost["scrape_cpu_ms"])
    return {
        **usual,
        "first_wall_ms": costs[0]["wall_ms"],
        "turn_ms": max(cost["turn_ms"] for cost in costs),
        "scrape_cpu_ms": share * costs[0]["scrape_cpu_ms"] + (1 - share) * usual["scrape_cpu_ms"],
        "entry_us": _entry_seconds() * 1e6,
    }


async def _scrape(broker: Broker) -> dict[str, float]:
    """Make one answer as the part's own door does; return its processor time and the longest turn of the event loop."""
    turns: list[float] = []
    is_over = False

    async def watch() -> None:
        while not is_over:
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began, began_wall = time.process_time(), time.perf_counter()
    found: dict[str, Any] = {**of_broker("lone", broker.statistics())}
    found |= of_topics("lone", await broker.admin.asked("metrics", {}))
    is_over = True
    text = await asyncio.to_thread(exposition, METRICS.values(), found)
    took, wall = time.process_time() - began, time.perf_counter() - began_wall
    await watching
    return {
        "scrape_cpu_ms": took * 1_000,
        "wall_ms": wall * 1_000,
        "turn_ms": max(turns) * 1_000,
        "bytes": len(text),
    }


def _entry_seconds() -> float:
    """Return what the counting of one entry costs: published, sized, delivered."""
    latency, delivery, sizes, rounds = Histogram(), Histogram(), Histogram(SIZE_BOUNDS), 200_000
    began = time.process_time()
    for _ in range(rounds):
        latency.counts[bisect_left(LATENCY_BOUNDS, 0.003)] += 1
        latency.total += 0.003
        sizes.counts[bisect_left(SIZE_BOUNDS, 1_000)] += 1
        delivery.counts[bisect_left(LATENCY_BOUNDS, 0.002)] += 1
        delivery.total += 0.002
    return (time.process_time() - began) / rounds
