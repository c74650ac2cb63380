"""A processor in Ray: totals of payments per customer, while one of its processes is killed.

    python -m examples.processor_actors

It starts a Ray and a cluster of its own in temporary directories. In a Ray cluster with ``helio up`` neither is needed,
nor ``client=``.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

import heliograph

PAYMENTS, CUSTOMERS = 500, 20


class Totals(heliograph.Processor):
    """Adds the payments of each customer, and sends each sum."""

    state = dict

    async def on_message(self, message: Any, context: Any) -> None:
        """Add a payment."""
        if message.value.get("ends_its_process") and not Path(message.value["ends_its_process"]).exists():
            Path(message.value["ends_its_process"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs short
        context.state["sum"] = context.state.get("sum", 0) + message.value["amount"]
        context.send("totals", {"sum": context.state["sum"], "process": os.getpid()}, key=message.key)


def read(reader: heliograph.Reader[Any], count: int, last: dict[str, int], processes: set[int]) -> None:
    """Note the last sum of each customer, and which processes sent sums."""
    for _ in range(count):
        message = reader.receive(timeout=120)
        last[message.key or ""] = message.value["sum"]
        processes.add(message.value["process"])


def main(directory: str) -> None:
    """Run the processor, and compare what it sends with a plain sum."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:
        client.admin.create_topic("payments", partitions=4)
        totals = heliograph.process(
            "payments", Totals, name="totals", schema=dict, client=client, instances=2, commit_every=0.1, num_cpus=0
        )
        totals.deploy()
        sums: Counter[str] = Counter()
        last: dict[str, int] = {}
        processes: set[int] = set()
        killed = str(Path(directory, "killed"))
        with (
            client.producer("payments", schema=dict) as producer,
            client.reader("totals", "earliest", schema=dict) as reader,
        ):
            for number in range(PAYMENTS):
                if number == PAYMENTS // 2:
                    read(reader, number, last, processes)  # both processes have sent sums
                    assert len(processes) == 2
                customer = f"customer-{number % CUSTOMERS}"
                sums[customer] += number
                is_deadly = number == PAYMENTS * 3 // 4
                producer.send({"amount": number, "ends_its_process": killed if is_deadly else None}, key=customer)
            read(reader, PAYMENTS - PAYMENTS // 2, last, processes)
            assert not reader.has_message_available(), "no output comes twice"
        assert last == sums
        assert len(processes) == 3, "two instances, and the one that came for the one that was killed"
        print(f"{PAYMENTS} payments, {len(last)} customers, {len(processes)} processes; each payment counts once")
    ray.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        main(directory)
