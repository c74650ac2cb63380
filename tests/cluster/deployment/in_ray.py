"""Run by ``test_start_in_ray.py``: a Ray of one node, a cluster in it, and a topic between two tasks.

Arguments: a directory, and the number of messages.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import ray

import heliograph

TOPIC = "numbers"
RECEIVE_SECONDS = 120


@ray.remote
def produce(count: int) -> None:
    """Publish the numbers below ``count``."""
    with heliograph.connect() as client:
        producer = client.producer(TOPIC)
        for number in range(count):
            producer.send(b"%d" % number)


@ray.remote(max_retries=1)
def consume(count: int, directory: Path) -> None:
    """Write the numbers to a file until all are there; die half-way, the first time."""
    seen = directory / "seen"
    died = directory / "died"
    with heliograph.connect() as client, client.consumer(TOPIC, "all", initial_position="earliest") as consumer:
        while len(numbers_in(seen)) < count:
            message = consumer.receive(timeout=RECEIVE_SECONDS)
            with seen.open("a") as file:
                file.write(f"{message.value.decode()}\n")
            consumer.ack(message)
            if len(numbers_in(seen)) == count // 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def numbers_in(path: Path) -> set[int]:
    """Return the numbers of a file."""
    return {int(line) for line in path.read_text().split()} if path.exists() else set()


def main(directory: Path, count: int) -> None:
    """Print what was seen, for the test."""
    # The tasks need both CPUs at once: the parts of the cluster leave them all.
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    cluster = heliograph.start(gateway=False)
    assert heliograph.start(gateway=False) == cluster
    assert asyncio.run(started_on_a_loop()) == cluster
    ray.get([consume.remote(count, directory), produce.remote(count)])
    with cluster.connect() as client, client.reader(TOPIC, start="earliest") as reader:
        stored = [int(reader.receive(timeout=RECEIVE_SECONDS).value) for _ in range(count)]
    assert stored == list(range(count))
    assert numbers_in(directory / "seen") == set(stored)
    assert (directory / "died").exists()
    cluster.stop()
    print("done")


async def started_on_a_loop() -> heliograph.RayCluster:
    """Start it as a notebook does, whose cells run on an event loop."""
    return heliograph.start(gateway=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
