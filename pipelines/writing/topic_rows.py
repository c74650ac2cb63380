"""The producers of one task: one for each topic, or one for each partition if rows are repeatable."""

from __future__ import annotations

import logging
import secrets
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack

from typing_extensions import override

from heliograph.base.errors import BadRequestError, ConnectionLostError, MayBeTwiceError, ProducerBusyError
from heliograph.client.schemas.schema import Schema
from heliograph.client.sync.client import Client
from heliograph.client.sync.producer import Producer
from heliograph.pipelines.writing.fields import KEY
from heliograph.pipelines.writing.identity import TASKS_MAX, WriteIdentity
from heliograph.pipelines.writing.in_flight import InFlight
from heliograph.pipelines.writing.row_groups import RowGroup
from heliograph.protocol.batch import FORGOTTEN_LAST, FORGOTTEN_TIME, key_text
from heliograph.protocol.hashing import java_string_hash
from heliograph.protocol.topic_name import TopicName
from heliograph.tracing.context import TRACEPARENT, TraceContext

TOPICS_MAX = 256  # that the rows of one task name (I15)
TURN_ROWS = 1000  # without a key go to one partition, then as many to the next
OPEN_SECONDS_MAX = 120  # to wait for another run of the same task to end (I15)
OPEN_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class TopicRows(ABC):
    """The rows of a task that go to one topic."""

    @abstractmethod
    def send(self, group: RowGroup, flight: InFlight) -> None:
        """Send some rows, after the rows of earlier calls.

        Raises:
            HeliographError: earlier rows failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for the sent rows, and leave the topic."""


class OnceEachRun(TopicRows):
    """Rows that are stored again when their task runs again."""

    def __init__(self, client: Client, topic: str, schema: Schema | None, trace: str) -> None:
        self._trace = trace
        self._producer = client.producer(topic, schema=schema, stop_at_failure=True).open()

    @override
    def send(self, group: RowGroup, flight: InFlight) -> None:
        _send(self._producer, group, flight, self._trace)

    @override
    def close(self) -> None:
        self._producer.close()


class OnceForGood(TopicRows):
    """Rows that are stored once, however often their task runs. The topic deduplicates.

    The partition of a row depends on its key, or on its number where it has none, so it is the same in each run.
    """

    def __init__(
        self, client: Client, topic: str, schema: Schema | None, write_identity: WriteIdentity, task: int, trace: str
    ) -> None:
        if task >= TASKS_MAX and not write_identity.writes_in_doubt:  # the broker would forget the first ones
            raise BadRequestError(
                f"task {task} is one of too many to write once: coalesce the table to fewer partitions",
                field="query",
                limit=f"{TASKS_MAX} tasks",
            )
        self._client = client
        self._schema = schema
        self._task = task
        self._trace = trace
        self._identity = write_identity
        self._base = write_identity.first_sequence_id
        self._producers: list[Producer] = []
        self._stored: list[int] = []  # rows of this batch that the partition holds already
        self._rows: list[int] = []  # rows of this batch that the partition was given in this run
        self._sent = 0
        with ExitStack() as opening:
            name = TopicName.parse(topic)
            for one in name.partitions(client.partitions(str(name))):
                producer, last = self._opened(str(one))
                opening.callback(producer.close)
                self._producers.append(producer)
                self._stored.append(max(0, last + 1 - self._base))
                self._rows.append(0)
            self._stack = opening.pop_all()

    @override
    def send(self, group: RowGroup, flight: InFlight) -> None:
        if self._sent + len(group.rows) > self._identity.rows_max:
            raise BadRequestError(
                f"task {self._task} has too many rows to write them once: repartition the table",
                field="query",
                limit=f"{self._identity.rows_max} rows a task",
            )
        for partition, wanted in self._split(group).items():
            known = min(len(wanted), max(0, self._stored[partition] - self._rows[partition]))
            self._rows[partition] += len(wanted)
            if fresh := wanted[known:]:
                _send(self._producers[partition], group.chosen(fresh), flight, self._trace)
        self._sent += len(group.rows)

    @override
    def close(self) -> None:
        self._stack.close()

    def _split(self, group: RowGroup) -> dict[int, list[int]]:
        keys, count = group.others.get(KEY), len(self._producers)
        if count == 1:
            return {0: list(range(len(group.rows)))}
        positions: dict[int, list[int]] = {}
        for position in range(len(group.rows)):
            key = keys[position] if keys else None
            chosen = (self._sent + position) // TURN_ROWS if key is None else java_string_hash(key_text(key))
            positions.setdefault(chosen % count, []).append(position)
        return positions

    def _opened(self, topic: str) -> tuple[Producer, int]:
        """Open the producer of one partition; return it with the last sequence id that the topic holds of it."""
        last, name = self._base - 1, self._identity.producer_name(self._task)
        while True:
            producer = self._free_producer(topic, name, last)
            if (stored := producer.last_sequence_id) <= last:
                if stored < 0 and not self._identity.writes_in_doubt:
                    self._check_known(topic)
                return producer, last
            producer.close()  # an earlier run stored more: number the rows from there on
            last = stored

    def _check_known(self, topic: str) -> None:
        """Refuse to write if the topic does not know this task, and may have forgotten tasks that wrote the batch."""
        if self._forgotten(topic, FORGOTTEN_LAST) >= self._base:
            raise MayBeTwiceError(topic, self._identity.query, self._forgotten(topic, FORGOTTEN_TIME))

    def _forgotten(self, topic: str, what: str) -> int:
        name = f"{self._identity.prefix}{what}{secrets.token_hex(8)}"  # of this task alone
        with self._client.producer(topic, schema=self._schema, name=name).open() as producer:
            return producer.last_sequence_id

    def _free_producer(self, topic: str, name: str, last: int) -> Producer:
        started = time.monotonic()
        while True:
            producer = self._client.producer(
                topic, schema=self._schema, name=name, initial_sequence_id=last, stop_at_failure=True
            )
            try:
                return producer.open()
            except (ProducerBusyError, ConnectionLostError) as error:
                producer.close()
                if time.monotonic() - started > OPEN_SECONDS_MAX:
                    raise
                log.info("waiting for another run of task %s to end: %s", name, error)
                time.sleep(OPEN_PAUSE_SECONDS)


def _send(producer: Producer, group: RowGroup, flight: InFlight, trace: str) -> None:
    flight.make_room(group.size)
    arguments = group.arguments
    if trace and group.rows:  # in the first row: a batch is followed by its first message with a context
        first, *others = arguments.get("properties") or [{}] * len(group.rows)
        arguments["properties"] = [{TRACEPARENT: trace, **(first or {})}, *others]
    flight.add(producer.send_many_async(group.values, **arguments), group.size, group.named)


class TaskRows:
    """All rows of one task. A topic's producers are opened with its first row.

    Args:
        task: the number of the task among the writers of the same batch.
        trace: the span of the rows; None: none.
    """

    def __init__(
        self,
        client: Client,
        schema: Schema | None,
        write_identity: WriteIdentity | None,
        task: int,
        flight: InFlight,
        trace: TraceContext | None = None,
    ) -> None:
        self._client = client
        self._schema = schema
        self._write_identity = write_identity
        self._task = task
        self._flight = flight
        self._trace = str(trace) if trace is not None and trace.is_sampled else ""
        self._topics: dict[str, TopicRows] = {}

    def __enter__(self) -> TaskRows:
        return self

    def __exit__(self, *failure: object) -> None:
        with ExitStack() as closing:
            for one in self._topics.values():
                closing.callback(one.close)

    def send(self, topic: str, group: RowGroup) -> None:
        """Send some rows to a topic.

        Raises:
            BadRequestError: the rows of the task name too many topics.
            ProducerBusyError: another run of the same task does not end.
            HeliographError: earlier rows failed, or the topic cannot be written.
        """
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                raise BadRequestError(
                    f"the rows of task {self._task} name too many topics, and {topic}: repartition the table by topic",
                    field="topic",
                    limit=f"{TOPICS_MAX} topics a task",
                )
            found = self._topics[topic] = self._opened(topic)
        found.send(group, self._flight)

    def _opened(self, topic: str) -> TopicRows:
        if self._write_identity is None:
            return OnceEachRun(self._client, topic, self._schema, self._trace)
        return OnceForGood(self._client, topic, self._schema, self._write_identity, self._task, self._trace)
