"""One consumer of a subscription: its dispatch state and the channel to its client."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Protocol

from actors.broker.dispatch import ConsumerState
from actors.broker.position import Position
from actors.broker.rates import Rates
from actors.broker.topic_entry import TopicEntry

_keys = itertools.count(1)


class ConsumerChannel(Protocol):
    """How a consumer reaches its client."""

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def client_version(self) -> str:
        """What the client calls itself."""

    def push(
        self, consumer: Consumer, position: Position, entry: TopicEntry, redelivery_count: int, bits: int | None
    ) -> None:
        """Send one entry. ``bits``: the messages of the batch not acknowledged, None for all."""

    def close_consumer(self, consumer: Consumer) -> None:
        """The broker ends this consumer; the client looks the topic up and subscribes again."""

    def probe(self) -> asyncio.Future[None]:
        """Find out whether the client is still there; if not, its consumers go. Resolves when that is known."""

    def reached_end(self, consumer: Consumer) -> None:
        """Tell a consumer that it got the last message that the topic will ever have."""

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Tell a consumer of a Failover subscription whether it is the active one."""


class Consumer:
    """Made by the connection, owned by the subscription."""

    def __init__(
        self,
        consumer_id: int,
        name: str,
        priority: int,
        partition: int,
        channel: ConsumerChannel,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        key = next(_keys)
        self.consumer_id = consumer_id
        self.partition = partition  # of the topic, for message ids; -1: not partitioned
        self.state = ConsumerState(key, name or f"consumer-{key:x}", priority)
        self.channel = channel
        self.metadata = metadata or {}
        self._rates = Rates()
        self.connected_ms = time.time_ns() // 1_000_000
        self.entries_out = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.knows_end = False  # it was told that nothing more will come
        self.epoch: int | None = None  # the client's count of its redeliveries and seeks, where it keeps one

    def rates(self) -> dict[str, float]:
        """Messages and bytes pushed, and entries given back, a second."""
        return self._rates.look(
            {
                "msgOutCounter": self.messages_out,
                "bytesOutCounter": self.bytes_out,
                "redelivered": self.messages_redelivered,
            }
        )

    @property
    def name(self) -> str:
        """What the client called it."""
        return self.state.name
