"""The loads with Pulsar's stock client (``pulsar-client``), which blocks: each runs in the calling thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pulsar

from heliograph.cli.messages.measure import (
    PAYLOAD_BYTES_MIN,
    Latencies,
    MeasuredRun,
    MessageStamp,
    make_payload,
    read_payload,
)

PENDING_MESSAGES_MAX = 20_000
ARRIVE_SECONDS_MAX = 10.0


@contextlib.contextmanager
def connected(service_url: str) -> Iterator[pulsar.Client]:
    """Open a client for the duration of the block."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def one_by_one(client: pulsar.Client, topic: str, size: int, seconds: float) -> MeasuredRun:
    """Publish one message at a time, each after the receipt of the one before."""
    producer = client.create_producer(topic)
    payload, run = os.urandom(size), MeasuredRun()
    begun = now = time.perf_counter()
    while now - begun < seconds:
        producer.send(payload)
        before, now = now, time.perf_counter()
        run.latencies.add((now - before) * 1000)
        run.messages += 1
    run.seconds = now - begun
    producer.close()
    return run


def end_to_end(client: pulsar.Client, topic: str, size: int, rate: float, messages: int) -> Latencies:
    """Measure from before the send to the listener's call, at a fixed rate, without batches."""
    latencies, arrived = Latencies(), threading.Event()

    def receive(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        made = read_payload(message.data())
        assert made is not None, "sent by this run"
        latencies.add((time.time_ns() - made.sent_ns) / 1e6)
        consumer.acknowledge(message)
        if latencies.count == messages:
            arrived.set()

    consumer = client.subscribe(topic, f"bench-{uuid.uuid4().hex[:8]}", message_listener=receive)
    producer = client.create_producer(topic)
    filler = os.urandom(size - PAYLOAD_BYTES_MIN)
    begun = time.perf_counter()
    for index in range(messages):
        pause = begun + index / rate - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        producer.send_async(make_payload(MessageStamp(0, index, time.time_ns()), filler), _check)
    producer.flush()
    assert arrived.wait(ARRIVE_SECONDS_MAX), f"{messages - latencies.count} messages did not arrive"
    producer.close()
    consumer.close()
    return latencies


def batched(client: pulsar.Client, topic: str, size: int, batch_bytes: int, seconds: float) -> MeasuredRun:
    """Publish as fast as the client allows, in batches that it forms."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=1_000,
        batching_max_allowed_size_in_bytes=batch_bytes,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=PENDING_MESSAGES_MAX,
    )
    payload, run = os.urandom(size), MeasuredRun()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(100):
            producer.send_async(payload, _check)
        run.messages += 100
    producer.flush()
    run.seconds = time.perf_counter() - begun
    run.bytes = run.messages * size
    producer.close()
    return run


def unbatched(client: pulsar.Client, topic: str, size: int, seconds: float) -> MeasuredRun:
    """Publish as fast as the client allows, each message as one entry."""
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=PENDING_MESSAGES_MAX)
    payload, run = os.urandom(size), MeasuredRun()
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(100):
            producer.send_async(payload, _check)
        run.messages += 100
    producer.flush()
    run.seconds = time.perf_counter() - begun
    producer.close()
    return run


def read(client: pulsar.Client, topic: str, seconds: float, idle_seconds: float) -> MeasuredRun:
    """Read a topic from its first message, for a time or to its end."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5_000)
    run = MeasuredRun()
    begun = now = time.perf_counter()
    while now - begun < seconds:
        try:
            message = reader.read_next(int(idle_seconds * 1000))
        except pulsar.Timeout:
            break
        now = time.perf_counter()
        run.messages += 1
        run.bytes += len(message.data())
        run.seconds = now - begun
    reader.close()
    return run


def _check(result: Any, message_id: Any) -> None:
    assert result == pulsar.Result.Ok, result
