"""The consumers: Ray tasks that receive flights, acknowledge them, and record what arrived in which order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c
import numpy as np
import ray

from examples.flights.flights import row_of
from heliograph import Message, Topic

EXCLUSIVE, SHARED = "demo-exclusive", "demo-shared"
CHUNK_MESSAGES_MAX = 5000  # received, acknowledged and reported together
RECEIVE_SECONDS = 0.25
RECEIVER_QUEUE = 10_000  # messages in flight to a consumer
QUIET_SECONDS = 1.0  # after the last expected row: time for an unexpected one to arrive
STALL_SECONDS = 45.0  # rows are missing and nothing arrives: stop, and let the checks report it

_OPTIONS: dict[str, Any] = {"initial_position": "earliest", "receiver_queue": RECEIVER_QUEUE}


@dataclass(frozen=True)
class Arrivals:
    """The messages that one consumer received, in order of arrival; arrays have one element per message."""

    rows: np.ndarray
    checksums: np.ndarray
    repeated: np.ndarray  # the message (by its id) had arrived before
    latencies_ms: np.ndarray  # one per chunk: the age of the newest message when it was received

    @property
    def redeliveries(self) -> int:
        """Return the number of messages that arrived again."""
        return int(self.repeated.sum())

    def first_deliveries(self) -> np.ndarray:
        """Return the rows without the redeliveries."""
        rows: np.ndarray = self.rows[~self.repeated]
        return rows


@dataclass
class _Recorder:
    """The arrivals so far."""

    rows: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    _seen: set[tuple[int, int, int, int]] = field(default_factory=set)

    def add(self, messages: Sequence[Message]) -> int:
        """Record messages.

        Returns:
            The number of messages that are new.
        """
        before = len(self._seen)
        for message in messages:
            place = message.message_id
            key = (place.partition, place.ledger_id, place.entry_id, place.batch_index)
            self.repeated.append(key in self._seen)
            self._seen.add(key)
            self.rows.append(row_of(message.value))
            self.checksums.append(crc32c.crc32c(message.value))
        self.latencies_ms.append(time.time() * 1000 - messages[-1].publish_time_ms)
        return len(self._seen) - before

    def arrivals(self) -> Arrivals:
        return Arrivals(
            np.array(self.rows, dtype=np.int64),
            np.array(self.checksums, dtype=np.uint32),
            np.array(self.repeated, dtype=bool),
            np.array(self.latencies_ms),
        )


class _End:
    """The decision that a consumer has received everything, or waits in vain."""

    def __init__(self) -> None:
        self._last_arrival = time.monotonic()

    def reached(self, *, arrived: bool, missing: int | None) -> bool:
        """Return whether to stop.

        Args:
            arrived: whether messages arrived just now.
            missing: the number of rows still missing, None while publishing continues.
        """
        now = time.monotonic()
        if arrived or missing is None:
            self._last_arrival = now
            return False
        return now - self._last_arrival > (STALL_SECONDS if missing > 0 else QUIET_SECONDS)


def consume_partition(topic: Topic, partition: int, conductor: Any) -> Arrivals:
    """Consume one partition from the earliest message, exclusively, acknowledging cumulatively.

    Args:
        topic: a handle of that partition's topic.
    """
    recorder, end, found = _Recorder(), _End(), 0
    with topic.consumer(EXCLUSIVE, type="exclusive", **_OPTIONS) as consumer:
        while True:
            messages = consumer.receive_many(CHUNK_MESSAGES_MAX, RECEIVE_SECONDS)
            new = recorder.add(messages) if messages else 0
            if messages:
                consumer.ack_cumulative(messages[-1])
            found += new
            published = ray.get(conductor.report.remote(EXCLUSIVE, new))
            missing = None if published is None else published.get(partition, 0) - found
            if end.reached(arrived=bool(messages), missing=missing):
                return recorder.arrivals()


def consume_shared(topic: Topic, conductor: Any) -> Arrivals:
    """Consume all partitions as one of several consumers, acknowledging each message."""
    recorder, end = _Recorder(), _End()
    with topic.consumer(SHARED, type="shared", **_OPTIONS) as consumer:
        while True:
            messages = consumer.receive_many(CHUNK_MESSAGES_MAX, RECEIVE_SECONDS)
            new = recorder.add(messages) if messages else 0
            if messages:
                consumer.ack_many(messages)
            published = ray.get(conductor.report.remote(SHARED, new))
            missing = None
            if published is not None:
                missing = sum(published.values()) - ray.get(conductor.rows.remote())[SHARED]
            if end.reached(arrived=bool(messages), missing=missing):
                return recorder.arrivals()
