"""The readers: Ray tasks that receive flights, acknowledge them, and remember what arrived in which order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c
import numpy as np
import ray

from heliograph import Message, Topic
from pipelines.demo.flights import row_of

EXCLUSIVE, SHARED = "demo-exclusive", "demo-shared"
CHUNK_MESSAGES_MAX = 5000  # received, acknowledged and reported together
RECEIVE_SECONDS = 0.25
RECEIVER_QUEUE = 10_000  # messages on their way to a consumer
QUIET_SECONDS = 1.0  # after the last row expected: time for an unexpected one to show up
STALL_SECONDS = 45.0  # nothing arrives although rows are missing: give up and let the checks say so

_OPTIONS: dict[str, Any] = {"initial_position": "earliest", "receiver_queue": RECEIVER_QUEUE}


@dataclass(frozen=True)
class Arrivals:
    """What one consumer received, in order of arrival; arrays have one element a message."""

    rows: np.ndarray
    checksums: np.ndarray
    repeated: np.ndarray  # this very message (by its id) had arrived before
    latencies_ms: np.ndarray  # one a chunk: newest message's age when it was received

    @property
    def redeliveries(self) -> int:
        """Messages that came more than once."""
        return int(self.repeated.sum())

    def first_deliveries(self) -> np.ndarray:
        """Rows without the redeliveries."""
        rows: np.ndarray = self.rows[~self.repeated]
        return rows


@dataclass
class _Notebook:
    """Arrivals while they come in."""

    rows: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    _seen: set[tuple[int, int, int, int]] = field(default_factory=set)

    def note(self, messages: Sequence[Message]) -> int:
        """Write ``messages`` down.

        Returns:
            How many of them are new.
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
    """Decides when a consumer has everything that it can hope for."""

    def __init__(self) -> None:
        self._last_arrival = time.monotonic()

    def reached(self, *, arrived: bool, missing: int | None) -> bool:
        """Args: whether something arrived just now; rows still missing, None while publishing goes on."""
        now = time.monotonic()
        if arrived or missing is None:
            self._last_arrival = now
            return False
        return now - self._last_arrival > (STALL_SECONDS if missing > 0 else QUIET_SECONDS)


def consume_partition(topic: Topic, partition: int, conductor: Any) -> Arrivals:
    """Read one partition from the earliest message, alone, acknowledging cumulatively.

    Args:
        topic: a handle of that partition's topic.
    """
    notebook, end, found = _Notebook(), _End(), 0
    with topic.consumer(EXCLUSIVE, type="exclusive", **_OPTIONS) as consumer:
        while True:
            messages = consumer.receive_many(CHUNK_MESSAGES_MAX, RECEIVE_SECONDS)
            new = notebook.note(messages) if messages else 0
            if messages:
                consumer.ack_cumulative(messages[-1])
            found += new
            published = ray.get(conductor.report.remote(EXCLUSIVE, new))
            missing = None if published is None else published.get(partition, 0) - found
            if end.reached(arrived=bool(messages), missing=missing):
                return notebook.arrivals()


def consume_shared(topic: Topic, conductor: Any) -> Arrivals:
    """Read what this one of several consumers is given, from all partitions, acknowledging each message."""
    notebook, end = _Notebook(), _End()
    with topic.consumer(SHARED, type="shared", **_OPTIONS) as consumer:
        while True:
            messages = consumer.receive_many(CHUNK_MESSAGES_MAX, RECEIVE_SECONDS)
            new = notebook.note(messages) if messages else 0
            if messages:
                consumer.ack_many(messages)
            published = ray.get(conductor.report.remote(SHARED, new))
            missing = None
            if published is not None:
                missing = sum(published.values()) - ray.get(conductor.rows.remote())[SHARED]
            if end.reached(arrived=bool(messages), missing=missing):
                return notebook.arrivals()
