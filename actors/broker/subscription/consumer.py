"""A consumer of a subscription: its dispatch state, its counters, and the channel to its client."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.clock import wall_ms
from heliograph.protocol.entry import ENTRY_MESSAGES_MAX

_keys = itertools.count(1)


class ConsumerChannel(Protocol):
    """The connection of a consumer's client."""

    @property
    def peer(self) -> str:
        """Return the client's address."""

    @property
    def client_version(self) -> str:
        """Return the version that the client reports."""

    def push(
        self,
        consumer: SubscriptionConsumer,
        position: Position,
        entry: TopicEntry,
        redelivery_count: int,
        bits: int | None,
        is_alone: bool,
        crashes: int,
        lone_crashes: int = 0,
    ) -> None:
        """Send one entry.

        Args:
            redelivery_count: how often the messages were given back.
            bits: the messages of the batch that are not acknowledged, a bit each; None for all.
            is_alone: whether no other entry is sent with it, so that it need not wait for others.
            crashes: how often the messages were lost with a consumer.
            lone_crashes: of these, how often it had nothing else in hand.
        """

    def close_consumer(self, consumer: SubscriptionConsumer) -> None:
        """Tell the client that the broker closed this consumer; the client looks the topic up and subscribes again."""

    def probe(self) -> asyncio.Future[None]:
        """Check that the client still answers, and remove its consumers if not. The future resolves when that is
        known."""

    def reached_end(self, consumer: SubscriptionConsumer) -> None:
        """Tell a consumer that it has the last message of a terminated topic."""

    def active_changed(self, consumer: SubscriptionConsumer, is_active: bool) -> None:
        """Tell a consumer of a Failover subscription whether it is the active one."""


class ConsumerRates(NamedTuple):
    """Messages and bytes pushed, and entries redelivered, each second."""

    messages: float
    size: float
    redelivered: float


class SubscriptionConsumer:
    """One consumer, made by the connection and owned by the subscription."""

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
        self.partition = partition  # of the topic, for message ids; -1 when it is not partitioned
        self.state = ConsumerState(key, name or f"consumer-{key:x}", priority)
        self.channel = channel
        self.metadata = metadata or {}
        self._window = RateWindow(time.monotonic(), 3)
        self.connected_ms = wall_ms()
        self.flow_ms = self.delivered_ms = self.acknowledged_ms = 0  # the last time; 0: never
        self.entries_out = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.is_termination_announced = False
        self.epoch: int | None = None  # the client's count of its redeliveries and seeks, if it counts them

    def rates(self, now: float) -> ConsumerRates:
        """Return the rates of messages pushed to the consumer.

        Args:
            now: seconds of the monotonic clock.
        """
        counters = (self.messages_out, self.bytes_out, self.messages_redelivered)
        return ConsumerRates(*self._window.rates(now, *counters))

    def sample_rates(self, now: float) -> None:
        """Note the counters for the rates of the next minute."""
        self._window.sample(now, self.messages_out, self.bytes_out, self.messages_redelivered)

    def note_in_hand(self, index: int | None, place: int) -> None:
        """Note which one message callers of the client have: that at ``place`` of an entry. None: several or none."""
        self.state.in_hand = None if index is None or place >= ENTRY_MESSAGES_MAX else (index, 1 << place)

    @property
    def name(self) -> str:
        return self.state.name
