"""Heliograph's runs: our client publishes and reads, and the least client reads."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

import uvloop

import heliograph
from heliograph.base.version import heliograph_version
from heliograph.cli.messages.measure import MeasuredRun
from heliograph.client.aio.client import AsyncClient
from tests.bench.bench import Bench
from tests.bench.broker.publish import LIST_MESSAGES, LISTS_AT_ONCE, send_lists
from tests.bench.process import Child, cpu_time, precise_cpu_seconds
from tools.laboratory.foreign.loads import (
    BACKLOG,
    BACKLOG_BYTES,
    SECONDS,
    SIZE,
    CatchUp,
    Runs,
    loads,
    read_again_and_again,
)
from tools.laboratory.foreign.protocols.pulsar import PERMITS, PulsarReader

BATCH_BYTES = 128 << 10
RECEIVE_SECONDS_MAX = 30.0


def measure(bench: Bench, directory: Path) -> Runs:
    """Run Heliograph in a process of its own with its data in ``directory``, and measure it."""
    with Child("tools.laboratory.foreign.host", directory) as server:
        return uvloop.run(_measure(bench, server.said(), server.pid))


async def _measure(bench: Bench, url: str, pid: int) -> Runs:
    client = await heliograph.connect_async(url)
    try:
        single = await client.producer("singles", batch_messages=1)
        payload = os.urandom(SIZE)

        async def load(window: int, seconds: float) -> MeasuredRun:
            run, begun = MeasuredRun(), time.perf_counter()

            async def publish() -> None:
                while (sent := time.perf_counter()) - begun < seconds:
                    await single.send(payload)
                    run.latencies.add((time.perf_counter() - sent) * 1000)
                    run.messages += 1

            await asyncio.gather(*(publish() for _ in range(window)))
            run.seconds = time.perf_counter() - begun
            return run

        one, many, cpu = await loads(bench, load, pid)
        batched = await client.producer("batches", batch_bytes=BATCH_BYTES)
        await send_lists(batched, bench.seconds(SECONDS) / 5)  # warm
        before = cpu_time(pid).total
        batches = await send_lists(batched, bench.seconds(SECONDS))
        batches_cpu = cpu_time(pid).total - before
        messages = await _fill(client, bench.count(BACKLOG_BYTES // SIZE))
        gc.collect()
        gc.freeze()  # as every section does that has a cluster: a collection would stop the client
        read = await _read_again_and_again(client, messages, pid, bench.seconds(SECONDS))
        topic, port = f"persistent://public/default/{BACKLOG}", int(url.rpartition(":")[2])
        least = await read_again_and_again(lambda: PulsarReader(topic, messages), port, pid, bench.seconds(SECONDS))
        return Runs(heliograph_version(), one, many, cpu, batches, batches_cpu, least, read)
    finally:
        await client.close()


async def _fill(client: AsyncClient, messages: int) -> int:
    """Publish a backlog in batches; return how many messages it has."""
    producer = await client.producer(BACKLOG, batch_bytes=BATCH_BYTES)
    values = [os.urandom(SIZE) for _ in range(LIST_MESSAGES)]
    lists = messages // LIST_MESSAGES + 1

    async def send(number: int) -> None:
        for _ in range(number, lists, LISTS_AT_ONCE):
            await producer.send_many(values)

    await asyncio.gather(*(send(number) for number in range(LISTS_AT_ONCE)))
    await producer.close()
    return lists * LIST_MESSAGES


async def _read_again_and_again(client: AsyncClient, messages: int, pid: int, seconds: float) -> CatchUp:
    """Have one new subscription after another read the backlog, until that took ``seconds``; at least one does."""
    found = CatchUp()
    while found.run.seconds < seconds:
        before, begun, run = precise_cpu_seconds(pid), time.perf_counter(), MeasuredRun()
        consumer = await client.consumer(
            BACKLOG, f"catch-up-{found.run.messages}", initial_position="earliest", receiver_queue=PERMITS
        )
        while run.messages < messages:
            received = await consumer.receive_many(PERMITS, RECEIVE_SECONDS_MAX)
            assert received, f"{messages - run.messages} messages did not arrive"
            run.messages += len(received)
            run.bytes += sum(len(message.data) for message in received)
        run.seconds = time.perf_counter() - begun
        found.add(run, precise_cpu_seconds(pid) - before)
        await consumer.unsubscribe()
    return found
