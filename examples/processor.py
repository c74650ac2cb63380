"""A processor of payments: totals per customer by two instances, one of which ends and begins again.

    python -m examples.processor

It starts a cluster of its own in a temporary directory. With ``helio dev`` or ``helio up`` that is not needed, nor is
``client=``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import heliograph

PAYMENTS, CUSTOMERS = 500, 20


class Totals(heliograph.Processor):
    """Adds the payments of each customer, and sends each sum."""

    state = dict

    async def on_message(self, message: Any, context: Any) -> None:
        """Add a payment."""
        context.state["sum"] = context.state.get("sum", 0) + message.value["amount"]
        context.send("totals", {"sum": context.state["sum"]}, key=message.key)


async def run(client: heliograph.Client) -> None:
    """Run the processor, and compare what it sends with plain sums."""
    totals = heliograph.process(
        "payments", Totals, name="totals", schema=dict, client=client, instances=2, commit_every=0.1
    )
    sums: Counter[str] = Counter()
    async with heliograph.AsyncClient(client.options) as own:
        await own.admin.create_topic("payments", partitions=4)
        instances = [asyncio.create_task(totals.work(number)) for number in range(2)]
        async with own.producer("payments", schema=dict) as producer:
            for number in range(PAYMENTS):
                customer = f"customer-{number % CUSTOMERS}"
                sums[customer] += number
                await producer.send({"amount": number}, key=customer)
                if number == PAYMENTS // 2:
                    instances[0].cancel()  # and what it owned goes on where it was
                    await asyncio.wait([instances[0]])
                    instances[0] = asyncio.create_task(totals.work(0))
        last: dict[str, int] = {}
        async with own.reader("totals", "earliest", schema=dict) as reader:
            for _ in range(PAYMENTS):
                message = await reader.receive(timeout=120)
                last[message.key or ""] = message.value["sum"]
            assert not await reader.has_message_available(), "no output comes twice"
        for instance in instances:
            instance.cancel()
        await asyncio.wait(instances)
    assert last == sums
    print(f"{PAYMENTS} payments of {len(last)} customers; each counts once")


def main(directory: str) -> None:
    """Run the processor in a cluster of its own."""
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:
        asyncio.run(run(client))


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        main(home)
