"""A reader of a topic in a process of its own.

``python -m tests.bench.broker.topic_reader ours|stock <url> <topic> earliest|latest <seconds>
[<MB/s>]`` prints a line when it
is ready, and then what it read in that time, beginning with the first message, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

import heliograph
from heliograph.cli.messages.measure import MeasuredRun

RECEIVER_QUEUE = 5_000
FIRST_SECONDS_MAX = 20.0
IDLE_SECONDS_MAX = 1.0


async def read(service_url: str, topic: str, start: str, seconds: float, mb_per_s: float) -> MeasuredRun:
    """Read with our client until the time has passed or no more messages arrive; at a pace unless that is 0."""
    client = await heliograph.connect_async(service_url)
    try:
        reader = await client.reader(topic, start, receiver_queue=RECEIVER_QUEUE)
        print("ready", flush=True)
        run, begun = MeasuredRun(), 0.0
        while not run.seconds or run.seconds < seconds:
            received = await reader.receive_many(5_000, IDLE_SECONDS_MAX if begun else FIRST_SECONDS_MAX)
            if not received:
                break
            now = time.perf_counter()
            if not begun:  # messages of the first call do not count: they were already waiting
                begun = now
                continue
            run.messages += len(received)
            run.bytes += sum(len(message.value) for message in received)
            run.seconds = now - begun
            if mb_per_s:
                await asyncio.sleep(max(0.0, run.bytes / mb_per_s / 1e6 - run.seconds))
        await reader.close()
        return run
    finally:
        await client.close()


def read_stock(service_url: str, topic: str, seconds: float) -> MeasuredRun:
    """Read with the stock client, from the earliest message."""
    from tests.bench.broker import stock

    with stock.connected(service_url) as client:
        print("ready", flush=True)
        return stock.read(client, topic, seconds, IDLE_SECONDS_MAX)


def main(kind: str, service_url: str, topic: str, start: str, seconds: str, mb_per_s: str = "0") -> None:
    """Run the reader in this process."""
    if kind == "stock":
        run = read_stock(service_url, topic, float(seconds))
    else:
        run = uvloop.run(read(service_url, topic, start, float(seconds), float(mb_per_s)))
    found = {"messages": run.messages, "bytes": run.bytes, "seconds": run.seconds}
    print(json.dumps({**found, "cpu_us_a_message": time.process_time() / run.messages * 1e6 if run.messages else 0.0}))


if __name__ == "__main__":
    main(*sys.argv[1:])
