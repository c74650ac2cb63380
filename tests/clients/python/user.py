"""A user of Pulsar's Python client: the client, a topic of its own, and what is done with it in every test."""

from __future__ import annotations

import uuid

import pulsar

from tests.clients.support.stack import ClientsStack

CLIENT = "Python client"
WAIT_MS = 60_000
LONG_MS = 60_000  # of a batch, which is as large as its test makes it: the flush sends it
EARLIEST = pulsar.InitialPosition.Earliest


class User:
    """A client, and a topic that nothing else uses."""

    def __init__(self, client: pulsar.Client, stack: ClientsStack) -> None:
        self.client = client
        self.stack = stack
        self.topic = f"persistent://public/default/python-{uuid.uuid4().hex[:8]}"

    def publish(self, count: int, *, first: int = 0, **options: object) -> list[pulsar.MessageId]:
        """Publish numbered messages with a producer of its own, and return their ids."""
        producer = self.client.create_producer(self.topic, **options)
        ids = [producer.send(f"m{number}".encode()) for number in range(first, first + count)]
        producer.close()
        return ids

    def subscribe(
        self, kind: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive, **options: object
    ) -> pulsar.Consumer:
        return self.client.subscribe(self.topic, "s", consumer_type=kind, initial_position=EARLIEST, **options)


def texts(consumer: pulsar.Consumer | pulsar.Reader, count: int) -> list[str]:
    """Receive and acknowledge so many messages."""
    found = []
    for _ in range(count):
        if isinstance(consumer, pulsar.Reader):
            message = consumer.read_next(WAIT_MS)
        else:
            message = consumer.receive(WAIT_MS)
            consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"m{number}" for number in range(first, first + count)]
