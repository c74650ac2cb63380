"""Processes killed under a steady load: how long publishing stops."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time

import uvloop

import heliograph
from tests.bench.bench import Bench
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.figure import Aim, Limit, at_most
from tests.bench.steady import SteadyPublisher

SECTION = "failover"
TOPIC = "failover"
BOOKIES, BROKERS = 4, 2  # one bookie to replace a dead one, one broker to take over
BOOKIE_ROUNDS, BROKER_ROUNDS = 3, 7
QUIET_SECONDS = 3.0
WATCH_SECONDS = 2.0  # after a kill
RESUME_SECONDS_MAX = 30.0


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    cluster = bench.cluster(bookies=BOOKIES, brokers=BROKERS)
    cluster.live.admin.create_topic(TOPIC)
    uvloop.run(_measure(bench, cluster))


async def _measure(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(namespace=cluster.namespace)
    try:
        async with SteadyPublisher(await client.producer(TOPIC)) as publisher:
            bench.say("measuring a steady load, undisturbed")
            await asyncio.sleep(1.0)  # connections are made
            begun = time.perf_counter()
            await asyncio.sleep(bench.seconds(QUIET_SECONDS))
            quiet = Limit(publisher.longest_wait(begun, time.perf_counter()), "the longest wait undisturbed")
            bench.say("measuring it while bookies are killed")
            gaps = [await _kill_bookie(cluster, publisher) for _ in range(bench.count(BOOKIE_ROUNDS))]
            _add(bench, "bookie SIGKILL: longest wait of a publish", gaps, quiet, at_most(1.0))
            bench.say("measuring it while brokers are killed")
            rounds = [await _kill_broker(cluster, publisher) for _ in range(bench.count(BROKER_ROUNDS))]
    finally:
        await client.close()
    assert not publisher.failures, publisher.failures[0]
    back = Limit(statistics.median(back for _, back in rounds), "Ray's restart of the broker's actor")
    _add(bench, "broker SIGKILL: until publishing resumes", [resumed for resumed, _ in rounds], back, at_most(3.0))


def _add(bench: Bench, name: str, seconds: list[float], against: Limit, aim: Aim) -> None:
    """Add a figure: the median is its value, the aim holds for the worst, which users notice."""
    worst = max(seconds)
    more = {"min_s": min(seconds), "max_s": worst, "rounds": len(seconds)}
    bench.add(SECTION, f"{name}, median", statistics.median(seconds), "s", against, aim=None, **more)
    bench.add(SECTION, f"{name}, worst", worst, "s", against, aim=aim)


async def _kill_bookie(cluster: PrivateCluster, publisher: SteadyPublisher) -> float:
    """Kill a bookie of the topic's open ledger and return the longest wait in seconds."""
    live = cluster.live
    stats = await asyncio.to_thread(live.admin.topic_internal_stats, TOPIC)
    victim = stats["ledgers"][-1]["ensembles"][-1]["bookies"][0]
    pid = await asyncio.to_thread(live.pid, victim)
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(WATCH_SECONDS)
    wait = publisher.longest_wait(killed - WATCH_SECONDS, killed + WATCH_SECONDS)
    await asyncio.to_thread(live.wait_back, victim, pid)
    return wait


async def _kill_broker(cluster: PrivateCluster, publisher: SteadyPublisher) -> tuple[float, float]:
    """Kill the topic's owner and return the seconds until publishing resumed, and until its actor had restarted."""
    live = cluster.live
    owner = (await asyncio.to_thread(live.admin.lookup, TOPIC))["actor_name"]
    pid = await asyncio.to_thread(live.pid, owner)
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    restart = asyncio.create_task(asyncio.to_thread(live.wait_back, owner, pid))
    resumed = await publisher.resumed_after(killed, RESUME_SECONDS_MAX)
    back = await restart
    await asyncio.sleep(WATCH_SECONDS / 2)  # the delayed messages are confirmed
    return resumed, back
