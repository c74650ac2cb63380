"""What a batch means for a queue of Pulsar's Python client: its messages are divided, refused and counted one by one.

Our own client is held to the same rows by tests/unit/client/local/test_fair_queues.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pulsar
import pytest

from heliograph.protocol.batch import TAKES_PARTS
from tests.clients.python.user import CLIENT, LONG_MS, WAIT_MS, User, numbered, texts
from tests.clients.support.report import ClientMatrix, Outcome
from tests.cluster.support.broker_cluster import wait_for

KEYS = 10
POLL_MS = 20
IDLE_ROUNDS = 600  # until a message is missing
QUIET_ROUNDS = 20  # in which no message comes twice
BURIED = "where each message is an entry of its own (policy `batching`): with one of a batch it buries the whole batch"
PARTS: dict[str, Any] = {"batch_index_ack_enabled": True, "properties": {TAKES_PARTS: "true"}}


def publish(user: User, count: int, *, keys: int = 0, is_batch: bool = True) -> None:
    """Publish numbered messages, in one batch or each in an entry of its own."""
    producer = user.client.create_producer(
        user.topic,
        max_pending_messages=2 * count,
        batching_enabled=is_batch,
        batching_max_messages=count,
        batching_max_publish_delay_ms=LONG_MS,
    )
    for number in range(count):
        options = {"partition_key": f"k{number % keys}"} if keys else {}
        producer.send_async(b"m%d" % number, None, **options)
    producer.flush()
    producer.close()


def shares(consumers: Sequence[pulsar.Consumer], count: int, poll_ms: int = POLL_MS) -> list[list[pulsar.Message]]:
    """Return what each consumer gets. Every message comes once."""
    got: list[list[pulsar.Message]] = [[] for _ in consumers]
    done = idle = 0
    while idle < (IDLE_ROUNDS if done < count else QUIET_ROUNDS):
        idle += 1
        for own, consumer in zip(got, consumers, strict=True):
            try:
                message = consumer.receive(poll_ms)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            own.append(message)
            done, idle = done + 1, 0
    found = Counter(message.data().decode() for own in got for message in own)
    assert found == Counter(numbered(count)), "each message comes once"
    return got


def backlog(user: User, name: str = "s") -> int:
    """Return the messages that are not acknowledged."""
    stats = user.stack.cluster.run(user.stack.cluster.admin.topic_stats(user.topic))
    return int(stats["subscriptions"][name]["backlogMessages"])


def divided_batches(user: User) -> None:
    for queue in (1, 4):
        user.topic += f"-{queue}"
        consumers = [user.subscribe(pulsar.ConsumerType.Shared, receiver_queue_size=queue, **PARTS) for _ in range(3)]
        publish(user, 60)
        sizes = sorted(map(len, shares(consumers, 60)))
        assert sizes[0] >= 15, sizes
        wait_for(lambda: backlog(user) == 0, "the acknowledgements")


def refused_alone(user: User) -> None:
    consumer = user.subscribe(pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=2_000, **PARTS)
    publish(user, 1_000)
    for number in range(1_000):
        message = consumer.receive(WAIT_MS)
        if number == 437:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(WAIT_MS)
    assert (again.data(), again.redelivery_count()) == (b"m437", 1)
    consumer.acknowledge(again)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(3_000)


def keys_together(user: User) -> None:
    consumers = [user.subscribe(pulsar.ConsumerType.KeyShared, receiver_queue_size=4, **PARTS) for _ in range(3)]
    publish(user, 12 * KEYS, keys=KEYS)
    homes: defaultdict[str, set[int]] = defaultdict(set)
    rounds: defaultdict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(shares(consumers, 12 * KEYS)):
        for message in own:
            homes[message.partition_key()].add(place)
            rounds[message.partition_key()].append(int(message.data()[1:]))
    assert len(homes) == KEYS
    assert all(len(places) == 1 for places in homes.values()), homes
    assert all(numbers == sorted(numbers) for numbers in rounds.values())


SCENARIOS: dict[str, Callable[[User], None]] = {
    one.__name__: one for one in (divided_batches, refused_alone, keys_together)
}


@pytest.mark.parametrize("feature", SCENARIOS)
def test_feature(feature: str, user: User, matrix: ClientMatrix) -> None:
    with matrix.noting(CLIENT, pulsar.__version__, feature):
        SCENARIOS[feature](user)


@pytest.mark.timeout(300)
def test_two_hundred_workers_all_have_work(user: User) -> None:
    consumers = [user.subscribe(pulsar.ConsumerType.Shared, receiver_queue_size=4, **PARTS) for _ in range(200)]
    publish(user, 2_000)
    sizes = Counter(map(len, shares(consumers, 2_000, poll_ms=1)))
    assert not sizes[0], f"consumers by the messages that each got: {sizes}"


WORKER_THAT_DIES = """
import os, sys, pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
worker = client.subscribe(
    sys.argv[2], "s", pulsar.ConsumerType.Shared, receiver_queue_size=int(sys.argv[3]), batch_index_ack_enabled=True,
    properties={sys.argv[4]: "true"}, initial_position=pulsar.InitialPosition.Earliest,
)
while True:
    message = worker.receive(20_000)
    if message.data() == b"m17":
        os._exit(7)
    worker.acknowledge(message)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_batch", [False, True])
def test_crashes_and_refusals_bury_no_job_that_succeeded(user: User, matrix: ClientMatrix, is_batch: bool) -> None:
    """A job kills three workers with all that they hold, and another one is refused each time: that one is buried.

    Of a batch the client buries all messages with it, also those that it was not sent: they are in the entry.
    """
    publish(user, 300, is_batch=is_batch)
    for queue in (1, 20, 1_000):
        command = [sys.executable, "-c", WORKER_THAT_DIES, user.stack.service_url, user.topic, str(queue), TAKES_PARTS]
        assert subprocess.run(command, check=False, timeout=120).returncode == 7
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{user.topic}-dead", "kept")
    consumer = user.subscribe(
        pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1_000, dead_letter_policy=policy, **PARTS
    )
    refusals = 0
    while refusals < 3:
        message = consumer.receive(WAIT_MS)
        if message.data() == b"m200":
            refusals += 1
            consumer.negative_acknowledge(message)
        else:
            assert message.redelivery_count() == 0, "a crash is no refusal"
            consumer.acknowledge(message)
    dead = user.client.subscribe(f"{user.topic}-dead", "kept")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(3_000)  # its client buries it when it comes once more
    buried = numbered(300) if is_batch else ["m200"]
    assert sorted(texts(dead, len(buried))) == sorted(buried)
    with pytest.raises(pulsar.Timeout):
        dead.receive(1_000)
    wait_for(lambda: backlog(user) == 0, "the acknowledgements")
    if is_batch:
        matrix.note(CLIENT, pulsar.__version__, "buried_alone", Outcome.PARTLY, BURIED)


@pytest.mark.parametrize("takes_parts", [True, False])
def test_a_worker_that_waits_gets_jobs_of_partitions_whose_permits_others_hold(user: User, takes_parts: bool) -> None:
    """A stock client keeps a permit for each partition, so a busy worker may hold a job of each, but no more of it."""
    user.stack.cluster.run(user.stack.cluster.admin.create_topic(user.topic, 8))
    options = {"receiver_queue_size": 1, **(PARTS if takes_parts else {})}
    busy = user.subscribe(pulsar.ConsumerType.Shared, **options)
    idle = user.subscribe(pulsar.ConsumerType.Shared, **options)
    user.publish(40, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    jobs = [busy.receive(WAIT_MS)]
    got: list[str] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            got += [(message := idle.receive(2_000)).data().decode()]
            idle.acknowledge(message)
    assert len(got) >= 40 - 2 * 8, "the busy worker holds two of each partition at most: one, and the one it asked for"
    busy.acknowledge(jobs[0])
    assert sorted([*got, jobs[0].data().decode(), *texts(busy, 39 - len(got))]) == sorted(numbered(40))
