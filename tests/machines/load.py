"""Clients that publish and acknowledge while machines fail, and the check of what they were confirmed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

import pulsar

import heliograph
from tests.chaos.history import Acknowledger, History, OwnPublisher, Publisher, check, wait_for_more

BURST = 1  # messages of each publisher every 10 ms
MORE = 100  # receipts that show that publishing goes on
RECEIVE_SECONDS = 120.0


@dataclass
class Stream:
    """One topic with a publisher and a consumer that acknowledges."""

    topic: str
    publisher: Publisher | OwnPublisher
    acknowledger: Acknowledger
    history: History


@dataclass
class Load:
    """A stock and an own publisher, each on a topic of its own, and a consumer of each topic."""

    client: heliograph.Client
    stock: pulsar.Client
    streams: list[Stream] = field(default_factory=list)
    begun_at: float = 0.0

    def begin_fault(self) -> None:
        """Note that acknowledgements confirmed until now have to survive what follows."""
        for stream in self.streams:
            stream.acknowledger.killed_at = monotonic()

    def wait_for_more(self) -> None:
        """Wait until each publisher has further receipts."""
        for stream in self.streams:
            wait_for_more(stream.history, MORE)

    def unavailable_seconds(self, since: float = 0.0) -> float:
        """Return the longest time between two receipts of one publisher, from the start or from a monotonic time on."""
        begun = max(since, self.begun_at)
        return max(
            b - a
            for stream in self.streams
            for a, b in itertools.pairwise([begun, *(each for each in stream.history.confirmed_at if each > begun)])
        )

    def use_something_new(self, topic: str) -> None:
        """Publish to a new topic, and receive from it and the others through new subscriptions, in order."""
        with self.client.producer(topic) as producer:
            for number in range(MORE):
                producer.send(b"%d" % number)
        for name in (topic, *(stream.topic for stream in self.streams)):
            with self.client.consumer(name, "new", initial_position="earliest") as consumer:
                received = list[int]()
                while not received or received[-1] < MORE - 1:
                    message = consumer.receive(RECEIVE_SECONDS)
                    received.append(int(message.value))
                    consumer.ack(message)
                assert list(dict.fromkeys(received)) == list(range(MORE)), f"{name}: {received}"  # I12

    def finish(self) -> None:
        """Stop, and compare what the topics hold with what was confirmed.

        Raises:
            AssertionError: a confirmed message is lost, invented or out of order, or a confirmed acknowledgement was.
        """
        for stream in self.streams:
            stream.publisher.stop()
        for stream in self.streams:
            stream.acknowledger.finish(stream.publisher.sent)
            check(self.stock, stream.topic, stream.history, stream.publisher.sent)


@contextmanager
def load(service_url: str, seed: int) -> Iterator[Load]:
    """Run the load for the length of the block, then check it."""
    stock = pulsar.Client(
        # Its log tells of each broker that does not answer, which is what happens here.
        service_url,
        operation_timeout_seconds=60,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    client = heliograph.connect(service_url)
    made = Load(client, stock, begun_at=monotonic())
    for kind in ("stock", "own"):
        topic, history = f"load-{seed}-{kind}", History()
        publisher: Publisher | OwnPublisher = (
            Publisher(stock, topic, history, burst=BURST)
            if kind == "stock"
            else OwnPublisher(client, topic, history, burst=BURST)
        )
        made.streams.append(Stream(topic, publisher, Acknowledger(service_url, topic, history, seed), history))
    made.wait_for_more()
    made.begun_at = max(stream.history.confirmed_at[0] for stream in made.streams)
    yield made
    made.finish()
    # After a failure they stay open: to close them waits for receipts, and nobody may send these any more.
    client.close()
    stock.close()
