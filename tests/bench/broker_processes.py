"""One, two and four broker processes on one machine: what each of them adds to a topic of partitions.

A broker process is one event loop, and so a core at most. Clients, bookies and brokers share the cores of this machine,
so more brokers raise the rate only while the machine has a core that nobody uses; the processor time for a message of
all servers shows what dividing the work costs.
"""

from __future__ import annotations

import time
from typing import Any

import uvloop

import heliograph
from heliograph.cli.messages.measure import MeasuredRun
from heliograph.client import discovery
from tests.bench.bench import Bench
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.broker.publish import BATCH_BYTES, send_lists
from tests.bench.figure import Limit
from tests.bench.process import precise_cpu_seconds

SECTION = "brokers"
PROCESSES = (1, 2, 4)
PARTITIONS = 16
BUNDLES = 64
SECONDS = 5.0
WARM_SHARE = 0.2
REST_SECONDS = 25.0  # until two reports in a row say that nothing is done
FORMS: dict[str, dict[str, Any]] = {
    "batches of 128 KiB": {"batch_bytes": BATCH_BYTES},
    "each message an entry": {"batch_messages": 1},
}


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    first: dict[str, tuple[float, float]] = {}
    for brokers in PROCESSES:
        cluster = bench.cluster(brokers=brokers)
        time.sleep(REST_SECONDS)
        # Bundles stay where they are until load moves them: those of a new namespace are dealt out among all brokers.
        cluster.live.admin.namespaces.create(f"public/among-{brokers}", BUNDLES)
        for form, options in FORMS.items():
            topic = f"persistent://public/among-{brokers}/{len(first)}-{form[:4]}"
            cluster.live.admin.create_topic(topic, PARTITIONS)
            bench.say(f"measuring {brokers} broker processes, {form}")
            run, cpu_us, shares = uvloop.run(_measure(bench, cluster, topic, options, brokers))
            per_second = run.messages / run.seconds
            one_rate, one_us = first.setdefault(form, (per_second, cpu_us))
            name = f"{brokers} broker processes, {PARTITIONS} partitions, {form}"
            bench.add(
                SECTION, name, per_second, "msgs/s", Limit(one_rate, "one process"),
                busiest_share=max(shares), idlest_share=min(shares),
            )  # fmt: skip
            bench.add(SECTION, f"  servers' CPU for a message, {name}", cpu_us, "us", Limit(one_us, "one process"))


async def _measure(
    bench: Bench, cluster: PrivateCluster, topic: str, options: dict[str, Any], brokers: int
) -> tuple[MeasuredRun, float, list[float]]:
    """Return the run, the servers' microseconds for a message, and each broker's share of the brokers' time."""
    pids = [cluster.live.pid(f"{discovery.BROKER_PREFIX}{number}") for number in range(1, brokers + 1)]
    client = await heliograph.connect_async(cluster.service_url)
    try:
        producer = await client.producer(topic, **options)
        seconds = bench.seconds(SECONDS)
        await send_lists(producer, seconds * WARM_SHARE)
        servers, each = cluster.cpu_seconds(), [precise_cpu_seconds(pid) for pid in pids]
        run = await send_lists(producer, seconds)
        used = [precise_cpu_seconds(pid) - before for pid, before in zip(pids, each, strict=True)]
        cpu_us = (cluster.cpu_seconds() - servers) / run.messages * 1e6
        await producer.close()
    finally:
        await client.close()
    return run, cpu_us, [seconds / sum(used) for seconds in used]
