"""One producer of a topic, and the entries that it waits for."""

from __future__ import annotations

import time
from typing import Protocol

from actors.broker.position import Position
from actors.broker.topic_entry import TopicEntry
from heliograph.errors import HeliographError


class ProducerChannel(Protocol):
    """How a producer reaches its client."""

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def client_version(self) -> str:
        """What the client calls itself."""

    def receipt(self, producer: Producer, sequence_id: int, highest: int, position: Position) -> None:
        """An entry is durable. Called in the order in which the entries came (I2)."""

    def settled(self, producer: Producer, size: int) -> None:
        """``size`` bytes of an entry are off our hands, stored or not."""

    def probe(self) -> None:
        """Find out whether the client is still there; if not, its producers go."""

    def close_producer(self, producer: Producer) -> None:
        """The broker ends this producer; the client looks the topic up, and sends again what has no receipt."""


class Producer:
    """Made by the connection, named and owned by the topic."""

    def __init__(self, producer_id: int, name: str, epoch: int, channel: ProducerChannel) -> None:
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.channel = channel
        self.connected_ms = time.time_ns() // 1_000_000
        self.pending = 0  # entries without a verdict
        self.is_closed = False
        self.messages_in = 0
        self.bytes_in = 0


class Send:
    """An entry on its way into the ledger; a Publication."""

    __slots__ = ("highest", "producer", "sequence_id", "size")

    def __init__(self, producer: Producer, sequence_id: int, highest: int, entry: TopicEntry) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest = highest
        self.size = len(entry.payload)
        producer.pending += 1
        producer.messages_in += entry.messages
        producer.bytes_in += self.size

    def confirmed(self, position: Position) -> None:
        """See Publication."""
        producer = self.producer
        producer.pending -= 1
        if not producer.is_closed:
            producer.channel.receipt(producer, self.sequence_id, self.highest, position)
        producer.channel.settled(producer, self.size)

    def failed(self, error: HeliographError) -> None:
        """See Publication. No word to the client: its producer is closed with the topic, so that it sends again."""
        self.producer.pending -= 1
        self.producer.channel.settled(self.producer, self.size)
