"""A bookie that joins, until its first entry, and one that is lost for good, until its copies are made again."""

from __future__ import annotations

import asyncio
import os
import time

import ray.exceptions
import uvloop

import heliograph
from heliograph.base.errors import NotFoundError
from heliograph.client.discovery import AUDITOR
from tests.bench.bench import Bench
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.figure import Limit, at_most
from tests.bench.steady import SteadyPublisher

SECTION = "repair"
BOOKIES, BROKERS = 4, 2
BULK, TOPIC = "bulk", "beside"
BULK_BYTES = 1 << 30
MESSAGE_BYTES = 128 << 10
AT_ONCE = 64  # messages in one list
QUIET_SECONDS = 5.0
SETTLED_SECONDS = 2.0  # from the loss of the bookie until the open ledgers have others
POLL_SECONDS = 0.1
SECONDS_MAX = 300.0


def report(bench: Bench) -> None:
    """Measure the rows of the section, in a cluster that has nothing else to copy."""
    cluster = bench.new_cluster(bookies=BOOKIES, brokers=BROKERS, auditor=True)
    uvloop.run(_measure(bench, cluster))


async def _measure(bench: Bench, cluster: PrivateCluster) -> None:
    client = await heliograph.connect_async(namespace=cluster.namespace)
    try:
        bench.say("measuring a bookie that joins")
        await _join(bench, cluster, client)
        size = bench.count(BULK_BYTES)
        bench.say(f"writing {size >> 20} MiB, to be copied again")
        await _write(client, size)
        async with SteadyPublisher(await client.producer(TOPIC)) as publisher:
            await _lose(bench, cluster, publisher, size)
    finally:
        await client.close()
    assert not publisher.failures, publisher.failures[0]


async def _join(bench: Bench, cluster: PrivateCluster, client: heliograph.AsyncClient) -> None:
    """Start one more bookie, and publish to new topics until one of them is on it."""
    joined, begun = f"bookie-{BOOKIES + 1}", time.perf_counter()
    await asyncio.to_thread(cluster.grow, bookies=BOOKIES + 1, brokers=BROKERS, auditor=True)
    serves = time.perf_counter() - begun
    for number in range(100):
        topic = f"joined-{number}"
        producer = await client.producer(topic)
        await producer.send(b"first")
        first = time.perf_counter() - begun
        await producer.close()
        if joined in await _bookies(cluster, topic):
            name, against = "bookie joins: until its first entry is confirmed", Limit(serves, "until it serves")
            bench.add(SECTION, name, first, "s", against, topics=number + 1)
            return
    raise AssertionError(f"no ledger of 100 is on {joined}")


async def _write(client: heliograph.AsyncClient, size: int) -> None:
    producer = await client.producer(BULK, batch_messages=1)
    payload = os.urandom(MESSAGE_BYTES)
    for _ in range(size // (MESSAGE_BYTES * AT_ONCE)):
        await producer.send_many([payload] * AT_ONCE)
    await producer.close()


async def _lose(bench: Bench, cluster: PrivateCluster, publisher: SteadyPublisher, size: int) -> None:
    """Lose a bookie that has a copy of every bulk message, and have its copies made again at once."""
    live = cluster.live
    victim = (await _bookies(cluster, BULK))[0]
    await asyncio.to_thread(live.admin.unload_topic, BULK)
    bench.say("measuring a steady load, undisturbed")
    begun = time.perf_counter()
    await asyncio.sleep(bench.seconds(QUIET_SECONDS))
    quiet = publisher.percentile(begun, time.perf_counter(), 0.99)
    bench.say(f"measuring it while the copies of {victim} are made again")
    lost = time.perf_counter()
    await asyncio.to_thread(live.end_for_good, victim)
    await asyncio.sleep(SETTLED_SECONDS)
    copying = 0.0
    while True:
        assert time.perf_counter() - lost < SECONDS_MAX, f"copies of {victim} are not made again"
        try:
            found = await asyncio.to_thread(live.call, AUDITOR, "recover_bookie", victim)
        except NotFoundError:  # it is gone, and no ledger names it
            found = {"ledgers_left": 0}
        except ray.exceptions.RayError:
            found = {"ledgers_left": None}  # its session has not ended: it may be there
        copying = copying or (0.0 if found["ledgers_left"] is None else time.perf_counter())
        if found["ledgers_left"] == 0:
            break
        await asyncio.sleep(POLL_SECONDS)
    done = time.perf_counter()
    assert copying < done, "copies were made"
    beside = publisher.percentile(copying, done, 0.99)
    limit = bench.disk.twice_of_blocks(1 << 20)
    rate = size / 1e6 / (done - copying)
    bench.add(SECTION, "bookie lost: its copies made again", rate, "MB/s", limit, mb=size / 1e6, seconds=done - copying)
    copied = Limit(done - copying, "the copying")
    bench.add(SECTION, "bookie lost: until every ledger has its copies", done - lost, "s", copied)
    before = Limit(quiet * 1e3, "the same before")
    bench.add(SECTION, "publish p99 beside the copying", beside * 1e3, "ms", before, aim=at_most(2 * before.value))


async def _bookies(cluster: PrivateCluster, topic: str) -> list[str]:
    """Return the bookies that a topic's last ledger is on."""
    stats = await asyncio.to_thread(cluster.live.admin.topic_internal_stats, topic)
    found: list[str] = stats["ledgers"][-1]["ensembles"][-1]["bookies"]
    return found
