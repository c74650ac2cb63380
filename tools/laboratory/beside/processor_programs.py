"""A processor and its load: ``python -m tools.laboratory.beside.processor_programs KIND worker|load ADDRESS COUNT``.

The module runs in the environment of what it measures, so it imports nothing of the other. The processor adds an amount
to the sum of the message's key and sends the sum. The load warms it up, publishes ``COUNT`` messages, waits for as many
sums, and prints, as a line of JSON, the messages a second from the first one that it publishes to the last sum.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

KEYS = 1_000
SENT, SUMS = "amounts", "sums"
COMMIT_SECONDS = 1.0
SECONDS = 600.0  # for the next sums


def quix(role: str, address: str, count: int) -> None:
    if role == "load":
        _load_of_kafka(address, count)
        return
    from quixstreams import Application

    app = Application(
        address,
        consumer_group="sums",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT_SECONDS,
        state_dir=tempfile.mkdtemp(),
        loglevel="ERROR",
    )
    frame = app.dataframe(app.topic(SENT, value_deserializer="json"))

    def add(value: dict[str, Any], state: Any) -> dict[str, Any]:
        found = state.get("sum", 0) + value["amount"]
        state.set("sum", found)
        return {"sum": found}

    frame.apply(add, stateful=True).to_topic(app.topic(SUMS, value_serializer="json"))
    app.run()


def _load_of_kafka(address: str, count: int) -> None:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5, "batch.num.messages": 1_000})
    settings = {"group.id": "load", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": address, "topic.metadata.refresh.interval.ms": 500, **settings})
    consumer.subscribe([SUMS])

    def through(messages: int) -> None:
        for number in range(messages):
            producer.poll(0)
            while True:
                try:
                    producer.produce(SENT, _value(number), key=_key(number))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        while messages > 0:
            messages -= sum(message.error() is None for message in consumer.consume(1_000, 0.1))

    through(KEYS)
    begun = time.perf_counter()
    through(count)
    print(json.dumps({"rate": count / (time.perf_counter() - begun)}))
    consumer.close()


def heliograph(role: str, address: str, count: int) -> None:
    from heliograph import AsyncClient, Processor, connect, process

    class Sums(Processor):
        state = dict

        def on_message(self, message: Any, context: Any) -> None:
            context.state["sum"] = context.state.get("sum", 0) + message.value["amount"]
            context.send(SUMS, {"sum": context.state["sum"]}, key=message.key)

    async def load(own: Any) -> None:
        async with own, own.producer(SENT) as producer, own.reader(SUMS, "earliest") as reader:

            async def through(messages: int) -> None:
                values = [_value(number) for number in range(messages)]
                await producer.send_many(values, keys=[_key(number) for number in range(messages)])
                while messages > 0:
                    messages -= len(await reader.receive_many(1_000, SECONDS))

            await through(KEYS)
            begun = time.perf_counter()
            await through(count)
            print(json.dumps({"rate": count / (time.perf_counter() - begun)}))

    with connect(address) as client:
        processor = process(SENT, Sums, name="sums", schema=dict, client=client, commit_every=COMMIT_SECONDS)
        asyncio.run(processor.work() if role == "worker" else load(AsyncClient(client.options)))


def _value(number: int) -> bytes:
    return json.dumps({"amount": number % 100}).encode()


def _key(number: int) -> str:
    return f"key-{number % KEYS}"


KINDS: dict[str, Callable[[str, str, int], None]] = {"quix": quix, "heliograph": heliograph}

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
