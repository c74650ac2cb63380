"""A topic as Spark micro-batches beside a running producer: the time from a publish to the commit of its batch."""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import heliograph
from heliograph.base.errors import ResourceError
from heliograph.base.loop_thread import LoopThread
from heliograph.cli.messages.measure import Latencies
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.pipelines.spark.session import spark_session
from heliograph.pipelines.streaming.stream import stream
from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.machine import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECTION = "streaming"
TOPIC = "streamed"
RATE = 500  # messages a second
STEPS = 50  # a second, in each of which an equal share of them is published
WARM_BATCHES = 5  # the first ones start Spark's workers
SECONDS = 20.0
_STAMP = struct.Struct(">q")


class _EnoughError(Exception):
    """Ends the stream: it has run for as long as it is measured."""


class _Batches:
    """Handles batches, and learns from their checkpoint when each was committed."""

    def __init__(self, checkpoint: Path, seconds: float) -> None:
        self.latencies = Latencies()
        self.lengths: list[float] = []  # seconds from one commit to the next
        self.rows = 0
        self._checkpoint = checkpoint
        self._seconds = seconds
        self._stamps: list[int] = []  # of the batch before, in ns
        self._committed = 0  # ns
        self._ends = 0.0

    def handle(self, frame: DataFrame, batch_id: int) -> None:
        """Take the rows of a batch. The one before has just been committed."""
        if batch_id:
            committed = (self._checkpoint / f"commit-{batch_id - 1}").stat().st_mtime_ns
            if batch_id > WARM_BATCHES:
                self._count(committed)
            self._committed = committed
        if batch_id == WARM_BATCHES:
            self._ends = time.monotonic() + self._seconds
        if self._ends and time.monotonic() > self._ends:
            raise _EnoughError
        self._stamps = [_STAMP.unpack(bytes(row.value))[0] for row in frame.select("value").collect()]

    def _count(self, committed: int) -> None:
        self.rows += len(self._stamps)
        self.lengths.append((committed - self._committed) / 1e9)
        for stamp in self._stamps:
            self.latencies.add((committed - stamp) / 1e6)


def report(bench: Bench) -> None:
    """Measure the rows of the section. Where there is no Spark or no Java, there are none."""
    cluster = bench.cluster()
    namespace = cluster.namespace
    bench.say("measuring a stream of Spark")
    checkpoint = bench.directory / "stream"
    found = _Batches(checkpoint, bench.seconds(SECONDS))
    try:
        with (
            spark_session("bench", namespace=namespace, configs=_configs()) as spark,
            LoopThread("load") as load,
        ):
            client, producer = load.run(_open(cluster.service_url))
            running = load.start(_publish(producer))
            try:
                stream(spark, TOPIC, found.handle, checkpoint=checkpoint, columns=["value"], namespace=namespace)
            except _EnoughError:
                pass
            finally:
                running.cancel()
                load.run(client.close())
    except ResourceError as error:
        bench.say(f"no stream: {error}")
        return
    length = statistics.median(found.lengths)
    bench.add(
        SECTION,
        f"publish to commit, p50, {RATE} messages/s",
        found.latencies.percentile(0.5),
        "ms",
        Limit(length * 1e3, "from one commit to the next"),
        p99_ms=found.latencies.percentile(0.99),
        longest_ms=found.latencies.longest_ms,
        batches=len(found.lengths),
        rows=found.rows,
    )


def _configs() -> dict[str, str]:
    """Return the settings with which executors import the code under test."""
    return {"spark.executorEnv.PYTHONPATH": str(ROOT)}


async def _open(service_url: str) -> tuple[AsyncClient, AsyncProducer]:
    """Connect, and create the topic."""
    client = await heliograph.connect_async(service_url)
    return client, await client.producer(TOPIC)


async def _publish(producer: AsyncProducer) -> None:
    """Publish the time, again and again, until cancelled."""
    while True:
        begun = time.monotonic()
        await producer.send_many([_STAMP.pack(time.time_ns())] * (RATE // STEPS))
        await asyncio.sleep(max(0.0, begun + 1 / STEPS - time.monotonic()))
