"""Jobs whose workers and brokers are killed, and whose bookies are replaced: each has its result, few run again."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

import heliograph
from heliograph.errors import JobFailedError
from heliograph.metadata.model import NamespacePolicies
from tests.chaos.broker_cluster import ProcessCluster, process_cluster
from tests.unit.tasks.program import work_of
from tests.unit.tasks.test_crashes import CONCURRENCY, WORKERS, WorkerProcesses, begun, keep_up

FULL = os.environ.get("FULL", "0") != "0"
JOBS, KILLS = (
    (10_000, 30) if FULL else (400, 3)
)  # of a worker, of the owner of the queue; a bookie is replaced; and again
SECONDS = 3_000 if FULL else 400
QUEUE = "jobs"


async def fault(number: int, cluster: ProcessCluster, workers: WorkerProcesses, choice: random.Random) -> int:
    """Kill the next one in turn, and start it again. Return how many jobs it may have had in hand."""
    kind = number % 3
    if kind == 0:
        workers.kill_one(choice)  # `keep_up` starts another one
        return CONCURRENCY
    if kind == 1:
        owner = cluster.owner_of(QUEUE)
        await asyncio.to_thread(owner.kill)
        await asyncio.to_thread(owner.start)
        return WORKERS * CONCURRENCY  # acknowledgements that were on their way to it
    await asyncio.to_thread(cluster.replace_bookie, choice.randrange(len(cluster.bookies)))
    return 0


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 120)
async def test_every_job_has_its_result(tmp_path: Path) -> None:
    choice, log, in_hand = random.Random(11), tmp_path / "log", 0
    with process_cluster(tmp_path, NamespacePolicies()) as cluster:
        address = cluster.service_url
        client = await asyncio.to_thread(heliograph.connect, address)
        work, workers = work_of(client, QUEUE, log), WorkerProcesses(address, QUEUE, log)
        keeping = asyncio.get_running_loop().create_task(keep_up(workers))
        try:
            async with asyncio.timeout(SECONDS):
                jobs = [await work.submit(number, 0.01) for number in range(JOBS)]
                for number in range(KILLS):
                    await begun(log, (number + 1) * JOBS // (KILLS + 1))
                    in_hand += await fault(number, cluster, workers, choice)
                results = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
        finally:
            keeping.cancel()
            workers.end()
        letters = await asyncio.to_thread(letters_of, client)
        await asyncio.to_thread(client.close)
    bad = set(range(99, JOBS, 100))
    assert [each for each in results if not isinstance(each, BaseException)] == [
        2 * number for number in range(JOBS) if number not in bad
    ], [each for each in results if isinstance(each, BaseException)][: len(bad) + 5]
    assert all(isinstance(results[number], JobFailedError) for number in bad)
    assert letters == len(bad), "no innocent job became a letter"
    runs = Counter(map(int, log.read_text().split()))
    assert set(runs) == set(range(JOBS))
    assert sum(runs[number] - 1 for number in range(JOBS) if number not in bad) <= in_hand


def letters_of(client: heliograph.Client) -> int:
    """Return how many letters the queue has."""
    found = 0
    with client.reader(f"{QUEUE}-letters", "earliest") as reader:
        while reader.has_message_available():
            reader.receive(SECONDS)
            found += 1
    return found
