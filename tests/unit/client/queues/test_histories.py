"""Random histories of shared and key-shared subscriptions: batches, and consumers that come, go, freeze, refuse and
crash, some of them by what they receive (I16, I22)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import ConnectionLostError
from heliograph.client.aio import in_hand
from tests.sabotage import sabotaged

pytestmark = pytest.mark.slow

MESSAGES, WORKERS_MAX = 300, 5
MAX_REDELIVER, MAX_CRASHES = 3, 1
KEYS = 12
ACK_TIMEOUT_MS = 1_000
POISON = 7  # each 50th message from this one on is refused by all
KILLER = 31  # each 100th message from this one on ends the process that receives it
SECONDS = 300
EVERYTHING = {b"%d" % n for n in range(MESSAGES)}


@dataclass(eq=False)
class Worker:
    """A consumer with a client of its own, so that its connection can be lost."""

    client: heliograph.AsyncClient
    consumer: heliograph.AsyncConsumer
    queue: int
    has_timeout: bool
    held: dict[bytes, tuple[heliograph.Message[bytes], float]] = field(default_factory=dict)  # since when

    def is_late(self, value: bytes) -> bool:
        """Return whether the client may have given a message back, since it is held for so long."""
        held = self.held.get(value)
        return held is not None and self.has_timeout and monotonic() - held[1] > 0.9 * ACK_TIMEOUT_MS / 1000

    def crash(self) -> None:
        """Lose the connection, as the end of the process would, and never come back."""
        for part in list(self.consumer._parts.values()):
            connection = part._leave()
            assert connection is not None
            connection.abort(ConnectionLostError("the test ends it"))


@dataclass
class Story:
    """What happened to each message, and what may happen next."""

    chance: random.Random
    refused: Counter[bytes] = field(default_factory=Counter)  # also those that came too late
    kind: str = "shared"
    crashed: int = 0
    crashed_alone: Counter[bytes] = field(default_factory=Counter)
    acknowledged: set[bytes] = field(default_factory=set)
    handled: Counter[bytes] = field(default_factory=Counter)
    free: set[bytes] = field(default_factory=set)  # was handled, and may be delivered again
    faults: list[str] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    gone: list[Worker] = field(default_factory=list)

    def delivered(self, worker: Worker, message: heliograph.Message[bytes]) -> None:
        value = message.data
        for other in self.workers:
            if other.is_late(value):
                self.given_up(other, value, is_refusal=True)
        if value in self.acknowledged:
            self.faults.append(f"{value!r} comes again after its acknowledgement")
        if value in self.handled and value not in self.free:
            self.faults.append(f"{value!r} comes again, and was not refused, late or lost")
        for other in self.workers if self.kind == "key_shared" else ():
            if other is not worker and any(key_of(held) == key_of(value) for held in other.held):
                self.faults.append(f"{value!r} comes while another consumer has a message of its key")
        if message.redelivery_count > self.refused[value]:
            self.faults.append(f"{value!r} was refused {self.refused[value]} times, not {message.redelivery_count}")
        if message.crashes > self.crashed:
            self.faults.append(f"{value!r} was lost {message.crashes} times with {self.crashed} consumers")
        self.free.discard(value)
        self.handled[value] += 1
        worker.held[value] = message, monotonic()

    @property
    def perhaps_dead(self) -> set[bytes]:
        """Return the messages that were refused, or killed what handled them alone, often enough."""
        refused = {value for value, times in self.refused.items() if times > MAX_REDELIVER}
        return refused | {value for value, times in self.crashed_alone.items() if times > MAX_CRASHES}

    def given_up(self, worker: Worker, value: bytes, *, is_refusal: bool) -> None:
        worker.held.pop(value)
        self.free.add(value)
        self.refused[value] += is_refusal


def is_poison(value: bytes) -> bool:
    return int(value) % 50 == POISON


def is_killer(value: bytes) -> bool:
    return int(value) % 100 == KILLER


def key_of(value: bytes) -> str:
    return str(int(value) % KEYS)


async def act(story: Story, worker: Worker) -> None:
    """Receive some messages, and acknowledge, refuse or keep them."""
    chance = story.chance
    for value, (message, _) in list(worker.held.items()):
        if worker.is_late(value):
            story.given_up(worker, value, is_refusal=True)
        elif chance.random() < 0.5 and not is_poison(value):
            del worker.held[value]
            await worker.consumer.ack(message)
            story.acknowledged.add(value)
    received = await worker.consumer.receive_many(chance.choice((1, 3, 50)), 0.02)
    for message in received:
        story.delivered(worker, message)
    if any(is_killer(message.data) for message in received):
        await leave(story, worker, is_crash=True)
        return
    for message in received:
        choice = chance.random()
        if message.data not in worker.held or worker.is_late(message.data):
            continue
        if is_poison(message.data) or (choice < 0.1 and not story.refused[message.data]):
            story.given_up(worker, message.data, is_refusal=True)
            await worker.consumer.nack(message)
        elif choice < 0.8:
            del worker.held[message.data]
            await worker.consumer.ack(message)
            story.acknowledged.add(message.data)


async def join(cluster: heliograph.LocalCluster, topic: str, story: Story) -> Worker:
    chance = story.chance
    client = await heliograph.connect_async(cluster.service_url)
    queue, has_timeout = chance.choice((1, 3, 20, 1_000)), chance.random() < 0.3
    options: dict[str, Any] = {
        "type": story.kind,
        "initial_position": "earliest",
        "receiver_queue": queue,
        "nack_delay_ms": chance.choice((0, 20)),
        "max_redeliver": MAX_REDELIVER,
        "max_crashes": MAX_CRASHES,
        "ack_timeout_ms": ACK_TIMEOUT_MS if has_timeout else 0,
    }
    consumer = client.consumer(topic, "s", **options)
    await consumer.open()
    return Worker(client, consumer, queue, has_timeout)


@pytest.mark.parametrize("seed", range(6))
async def test_every_message_is_handled_and_again_only_for_a_reason(
    cluster: heliograph.LocalCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_hand, "ALONE_SECONDS", 0.2)
    await tell(cluster, f"history-{seed}", Story(random.Random(seed), kind=("shared", "key_shared")[seed % 2]))


async def tell(cluster: heliograph.LocalCluster, topic: str, story: Story) -> None:
    """Run one history, and raise AssertionError at its first fault."""
    try:
        async with await heliograph.connect_async(cluster.service_url) as client, asyncio.timeout(SECONDS):
            await run(cluster, client, topic, story)
            dead = await client.reader(f"{topic}-s-DLQ", "earliest").receive_many(1_000, 2)
    finally:
        for worker in story.workers + story.gone:
            await worker.client.close()
    assert {letter.data for letter in dead} <= story.perhaps_dead, "no innocent dead letter"
    assert {value for value in EVERYTHING if is_poison(value) or is_killer(value)} <= {letter.data for letter in dead}
    assert set(story.handled) == EVERYTHING, "each is handled"


async def run(cluster: heliograph.LocalCluster, client: heliograph.AsyncClient, topic: str, story: Story) -> None:
    """Publish, and let workers come, work and go, until nothing is left."""
    chance, workers, sent = story.chance, story.workers, 0
    async with client.producer(topic) as producer:
        while (
            sent < MESSAGES
            or not story.acknowledged | story.perhaps_dead >= EVERYTHING
            or (await client.admin.topic_stats(topic))["subscriptions"]["s"]["msgBacklog"]
        ):
            if sent < MESSAGES:
                count = min(chance.choice((1, 2, 10, 60)), MESSAGES - sent)
                values = [b"%d" % n for n in range(sent, sent + count)]
                await producer.send_many(values, keys=[*map(key_of, values)])
                sent += count
            if not workers or (len(workers) < WORKERS_MAX and chance.random() < 0.2):
                workers.append(await join(cluster, topic, story))
            for worker in list(workers):
                event = chance.random()
                if event < 0.06 and len(workers) > 1:
                    await leave(story, worker, is_crash=event < 0.03)
                elif event < 0.9:  # otherwise it does nothing for a while
                    await act(story, worker)
            assert story.faults == []
    for worker in workers:
        await worker.consumer.close()


async def leave(story: Story, worker: Worker, *, is_crash: bool) -> None:
    story.workers.remove(worker)
    story.gone.append(worker)
    if is_crash:
        story.crashed += 1
        if len(worker.held) == 1:
            story.crashed_alone.update(worker.held.keys())
        worker.crash()
    else:
        await worker.consumer.close()
    for value in list(worker.held):
        story.given_up(worker, value, is_refusal=worker.is_late(value))


async def tell_several(cluster: heliograph.LocalCluster, name: str) -> None:
    for seed in range(100, 106):
        await tell(cluster, f"{name}-{seed}", Story(random.Random(seed), kind=("shared", "key_shared")[seed % 2]))


SABOTAGES = {
    "crash": ("cursor.cursor:Cursor.count_crash", "self.crashed.add", "self.refused.add"),
    "entry": ("cursor.cursor:Cursor.count_redelivery", "self.refused.add(index, bits)", "self.refused.add(index, 0)"),
    "whole": ("dispatch.shared:SharedDispatcher._take_back", "if bits:", "if False:"),
    "held": ("dispatch.shared:SharedDispatcher._deliver_part", "bits & ~held", "bits"),
}


@pytest.mark.parametrize("name", SABOTAGES)
async def test_a_sabotage_shows(cluster: heliograph.LocalCluster, name: str) -> None:
    where, old, new = SABOTAGES[name]
    fails = pytest.raises((AssertionError, TimeoutError))
    with sabotaged(f"heliograph.actors.broker.{where}", old, new), fails:
        await tell_several(cluster, name)
