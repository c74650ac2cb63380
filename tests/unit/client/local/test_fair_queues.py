"""The messages of one batch go to all consumers that ask for some, and come back one by one (I22)."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

import heliograph
from heliograph.protocol.batch import TAKES_PARTS

pytestmark = pytest.mark.slow

SECONDS = 60
SHARED: dict[str, Any] = {"type": "shared", "initial_position": "earliest"}


@pytest.fixture
async def client(cluster: heliograph.LocalCluster) -> AsyncIterator[heliograph.AsyncClient]:
    async with await heliograph.connect_async(cluster.service_url) as made:
        yield made


class Crew:
    """Workers of one queue, each of which takes a job at a time."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self.done: Counter[str] = Counter()
        self.handled: Counter[bytes] = Counter()
        self.is_over = asyncio.Event()

    async def work(self, name: str, consumer: heliograph.AsyncConsumer) -> None:
        while not self.is_over.is_set():
            for message in await consumer.receive_many(1, 0.05):
                await asyncio.sleep(0.01)
                await consumer.ack(message)
                self.done[name] += 1
                self.handled[message.data] += 1
                if len(self.handled) == self.left:
                    self.is_over.set()

    async def run(self, *consumers: heliograph.AsyncConsumer) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(self.work(f"w{n}", one) for n, one in enumerate(consumers)))


async def test_one_batch_of_jobs_is_shared_by_all_idle_workers(client: heliograph.AsyncClient) -> None:
    workers = [await client.consumer("idle-jobs", "s", **SHARED, receiver_queue=1) for _ in range(3)]
    await client.producer("idle-jobs").send_many([b"%d" % n for n in range(60)])
    crew = Crew(60)
    await crew.run(*workers)
    assert len(crew.done) == 3
    assert all(15 <= done <= 25 for done in crew.done.values()), crew.done
    assert set(crew.handled.values()) == {1}


async def test_two_hundred_workers_all_have_work(client: heliograph.AsyncClient) -> None:
    workers = [await client.consumer("many-jobs", "s", **SHARED, receiver_queue=4) for _ in range(200)]
    await client.producer("many-jobs").send_many([b"%d" % n for n in range(2_000)])
    crew = Crew(2_000)
    await crew.run(*workers)
    assert len(crew.done) == 200, "all of them work"
    assert set(crew.handled.values()) == {1}


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_permits_go_where_a_worker_waits(client: heliograph.AsyncClient, kind: str) -> None:
    """A busy worker of eight partitions keeps one job and asks for one more; an idle one gets the others."""
    topic = f"eight-{kind}"
    await client.admin.create_topic(topic, partitions=8)
    options: dict[str, Any] = {**SHARED, "type": kind, "receiver_queue": 1}
    busy = await client.consumer(topic, "s", **options)
    producer = client.producer(topic)
    await producer.send(b"long", key="long")
    job = await busy.receive(SECONDS)
    idle = await client.consumer(topic, "s", **options)
    for number in range(11):
        await producer.send(b"%d" % number, key=None if kind == "shared" else f"{number}")
    got: list[heliograph.Message[bytes]] = []
    async with asyncio.timeout(SECONDS):
        while len(got) < (9 if kind == "shared" else 1):
            messages = await idle.receive_many(1, 1)
            await idle.ack_many(messages)
            got += messages
        theirs = await busy.receive_many(1, 0.5) if kind == "shared" else []
        await busy.ack(job)
        while len(got) + len(theirs) < 11:
            theirs += await busy.receive_many(1, 0.5)
            messages = await idle.receive_many(1, 0.1)
            await idle.ack_many(messages)
            got += messages
    assert len(got) + len(theirs) == 11
    if kind == "shared":
        assert len(got) >= 9, "the busy one asked for one more"
    assert all(message.delivery_attempt == 1 for message in got + theirs), "what went back was not refused"


async def test_workers_of_many_partitions_share_them_evenly(client: heliograph.AsyncClient) -> None:
    await client.admin.create_topic("eight-even", partitions=8)
    workers = [await client.consumer("eight-even", "s", **SHARED, receiver_queue=1) for _ in range(3)]
    producer = client.producer("eight-even")
    for start in range(0, 60, 10):
        await producer.send_many([b"%d" % n for n in range(start, start + 10)])
    crew = Crew(60)
    await crew.run(*workers)
    assert len(crew.done) == 3
    assert all(15 <= done <= 25 for done in crew.done.values()), crew.done
    assert set(crew.handled.values()) == {1}


async def test_a_refused_job_comes_back_alone(client: heliograph.AsyncClient) -> None:
    workers = [await client.consumer("refused", "s", **SHARED, nack_delay_ms=0) for _ in range(2)]
    await client.producer("refused").send_many([b"%d" % n for n in range(1_000)])
    handled: Counter[bytes] = Counter()
    async with asyncio.timeout(SECONDS):
        while sum(handled.values()) < 1_001:
            for worker in workers:
                for message in await worker.receive_many(1_000, 0.05):
                    handled[message.data] += 1
                    if message.data == b"437" and not message.redelivery_count:
                        await worker.nack(message)
                    else:
                        await worker.ack(message)
    for worker in workers:
        assert await worker.receive_many(1, 0.1) == []
    assert [value for value, times in handled.items() if times > 1] == [b"437"]
    assert handled[b"437"] == 2
    assert len(handled) == 1_000


async def test_only_what_failed_becomes_a_dead_letter(client: heliograph.AsyncClient) -> None:
    """A job of one batch fails each time, and a worker is lost with others of it again and again."""
    options: dict[str, Any] = {**SHARED, "nack_delay_ms": 0, "max_redeliver": 2, "receiver_queue": 20}
    worker = await client.consumer("poison", "s", **options)
    await client.producer("poison").send_many([b"%d" % n for n in range(100)])
    counts: dict[bytes, set[int]] = {}
    done = 0
    async with asyncio.timeout(SECONDS):
        while done < 99 or len(counts[b"7"]) < 3:
            lost = await client.consumer("poison", "s", **{**options, "max_redeliver": None})
            await lost.receive_many(5, 0.05)
            for message in await worker.receive_many(10, 0.2):
                counts.setdefault(message.data, set()).add(message.redelivery_count)
                if message.data == b"7":
                    await worker.nack(message)
                else:
                    await worker.ack(message)
                    done += 1
            await lost.close()
    dead = await client.reader("poison-s-DLQ", "earliest").receive_many(10, 5)
    assert [letter.data for letter in dead] == [b"7"]
    assert counts.pop(b"7") == {0, 1, 2}
    assert all(found == {0} for found in counts.values()), "what was not refused was not counted"


WORKER_THAT_DIES = """
import os, sys, heliograph
with heliograph.connect(sys.argv[1]) as client:
    options = {"type": "shared", "initial_position": "earliest", "receiver_queue": int(sys.argv[2])}
    worker = client.consumer("crashes", "s", **options)
    while message := worker.receive(timeout=20):
        if message.data == b"17":
            os._exit(1)
        if message.data == b"500":
            worker.nack(message)
        else:
            worker.ack(message)
"""


async def test_crashes_bury_no_job(cluster: heliograph.LocalCluster, client: heliograph.AsyncClient) -> None:
    """One of 1,000 jobs kills its worker each time, with all that the worker held; another one is refused each time."""
    options: dict[str, Any] = {**SHARED, "nack_delay_ms": 0, "max_redeliver": 2}
    await client.producer("crashes").send_many([b"%d" % n for n in range(1_000)])
    for queue in ("1", "20", "1000"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER_THAT_DIES, cluster.service_url, queue
        )
        assert await process.wait() == 1
    worker = await client.consumer("crashes", "s", **options)
    seen: dict[bytes, heliograph.Message[bytes]] = {}
    async with asyncio.timeout(SECONDS):
        while messages := await worker.receive_many(1_000, 1):
            for message in messages:
                seen[message.data] = message
                if message.data == b"500":
                    await worker.nack(message)
                else:
                    await worker.ack(message)
    dead = await client.reader("crashes-s-DLQ", "earliest").receive_many(10, 5)
    assert [letter.data for letter in dead] == [b"500"]
    assert dead[0].properties["heliograph.delivery_attempt"] == str(3 + seen[b"500"].crashes)
    assert seen[b"17"].crashes == max(message.crashes for message in seen.values()) == 3
    assert seen[b"17"].properties["heliograph.crashes"] == "3"
    assert all(not message.redelivery_count for data, message in seen.items() if data != b"500")


async def test_what_a_lost_worker_held_goes_to_the_others(client: heliograph.AsyncClient) -> None:
    lost, *others = [await client.consumer("lost", "s", **SHARED, receiver_queue=10) for _ in range(3)]
    await client.producer("lost").send_many([b"%d" % n for n in range(100)])
    held = [await lost.receive(SECONDS) for _ in range(10)]
    await lost.ack_many(held[:5])
    await lost.close()
    crew = Crew(95)
    await crew.run(*others)
    assert not {message.data for message in held[:5]} & set(crew.handled)
    assert set(crew.handled.values()) == {1}


@pytest.mark.parametrize("names_it", [True, False])
async def test_stock_consumers_get_parts_once_they_say_that_they_take_them(
    cluster: heliograph.LocalCluster, client: heliograph.AsyncClient, names_it: bool
) -> None:
    """Nothing in the protocol tells whether a stock consumer acknowledges single messages of a batch."""
    topic = f"stock-{names_it}"
    theirs = await asyncio.to_thread(pulsar.Client, cluster.service_url)
    try:
        consumers = [
            theirs.subscribe(
                topic,
                "s",
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,
                batch_index_ack_enabled=True,
                properties={TAKES_PARTS: "true"} if names_it else {},
            )
            for _ in range(3)
        ]
        await client.producer(topic).send_many([b"%d" % n for n in range(24)])
        handled: Counter[int] = Counter()
        values: set[bytes] = set()
        idle = 0
        while idle < 3:
            idle += 1
            for place, consumer in enumerate(consumers):
                try:
                    message = await asyncio.to_thread(consumer.receive, 100)
                except pulsar.Timeout:
                    continue
                idle = 0
                await asyncio.to_thread(consumer.acknowledge, message)
                handled[place] += 1
                values.add(message.data())
        assert len(values) == sum(handled.values()) == 24, "each is handled once"
        assert len(handled) == (3 if names_it else 1)
        if names_it:
            assert all(5 <= done <= 11 for done in handled.values()), handled
    finally:
        await asyncio.to_thread(theirs.close)
    async with client.consumer(topic, "s", **SHARED) as ours:
        assert await ours.receive_many(1, 0.2) == [], "everything was acknowledged"


async def test_what_was_refused_is_not_late_as_well(client: heliograph.AsyncClient) -> None:
    """A job is refused, the other one of its batch is acknowledged; the refused one is held again after that."""
    options: dict[str, Any] = {**SHARED, "nack_delay_ms": 0, "ack_timeout_ms": 4_000}
    worker = await client.consumer("refused-in-time", "s", **options)
    await client.producer("refused-in-time").send_many([b"bad", b"good"])
    bad, good = await worker.receive_many(2, SECONDS)
    await worker.nack(bad)
    again = await worker.receive(SECONDS)
    await worker.ack(good)
    await worker.nack(bad)
    assert (again.data, again.redelivery_count) == (b"bad", 1)
    assert await worker.receive_many(1, 0.5) == [], "a message that was given back is not given back again"
    late = await worker.receive(SECONDS)
    assert late.redelivery_count == 2, "it was late once, since it was held the second time"


async def test_a_job_that_waits_in_the_inbox_is_not_late(client: heliograph.AsyncClient) -> None:
    """A slow worker takes the jobs of one batch one by one, and loses the first: only that one comes again."""
    options: dict[str, Any] = {**SHARED, "ack_timeout_ms": 4_000}
    worker = await client.consumer("slow", "s", **options)
    await client.producer("slow").send_many([b"%d" % n for n in range(20)])
    lost = await worker.receive(SECONDS)
    counts: Counter[tuple[bytes, int]] = Counter()
    async with asyncio.timeout(SECONDS):
        while (lost.data, 1) not in counts or len(counts) < 20:
            message = await worker.receive()
            await worker.ack(message)
            counts[message.data, message.redelivery_count] += 1
            await asyncio.sleep(0.25)
    assert dict(counts) == {(b"0", 1): 1} | {(b"%d" % n, 0): 1 for n in range(1, 20)}
