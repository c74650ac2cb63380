"""The writer that Ray tasks and Spark executors run to publish the rows of a table.

With a ``WriteIdentity`` every row is stored once, however often its task runs: the task publishes under a name of its
own, the sequence ids of its rows are fixed by the batch and the row, and rows that the topic has are left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from heliograph.base.errors import BadRequestError, ConnectionLostError, ProducerBusyError, UnsupportedError
from heliograph.client import discovery
from heliograph.client.access import connect, joined_address
from heliograph.client.admin.admin import AdminSync
from heliograph.client.certificates import tls_options
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.client.options import ENCRYPTED
from heliograph.client.sync.client import Client
from heliograph.client.sync.producer import Producer
from heliograph.protocol.batch import key_text
from heliograph.protocol.hashing import java_string_hash
from heliograph.protocol.topic_name import TopicName

SEND_ROWS_MAX = 1000  # rows that are sent and confirmed together (I15)
ROW_BITS = 40  # of a sequence id; the bits above are the batch
BATCH_IDS_MAX = 1 << 22
OPEN_SECONDS_MAX = 120  # to wait for another run of the same task to end (I15)
OPEN_PAUSE_SECONDS = 0.5

VALUE, KEY, PROPERTIES, EVENT_TIME, ORDERING_KEY = "value", "key", "properties", "event_time", "ordering_key"
COLUMNS = (VALUE, KEY, PROPERTIES, EVENT_TIME, ORDERING_KEY)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteIdentity:
    """The names that make a write repeatable.

    Args:
        query: the name of the query, which no other query writes to the topic under.
        batch_id: of its batch, growing with each.
    """

    query: str
    batch_id: int = 0

    def __post_init__(self) -> None:
        if not self.query or not 0 <= self.batch_id < BATCH_IDS_MAX:
            raise BadRequestError(
                f"query {self.query!r}, batch id {self.batch_id}", field="batch_id", limit=f"0 to {BATCH_IDS_MAX - 1}"
            )

    @property
    def first_sequence_id(self) -> int:
        """Return the sequence id of the first row of the batch, in each task and partition of the topic."""
        return self.batch_id << ROW_BITS


@dataclass(frozen=True)
class TableWriter:
    """A publisher of Arrow batches with a column ``value`` and optionally ``key``, ``properties``, ``event_time`` and
    ``ordering_key``. It can be pickled.

    The token, or user and password, of the process that makes it goes with it to the tasks that write. So do the paths
    of its files of TLS, which have to exist where the tasks run.
    """

    address: str
    topic: str
    identity: Identity = field(default_factory=Identity.from_environment, repr=False)
    tls: Mapping[str, str] = field(default_factory=dict)
    write_identity: WriteIdentity | None = None

    @classmethod
    def of(
        cls,
        topic: str,
        address: str | None,
        namespace: str | None,
        credentials: IdentityOptions,
        write_identity: WriteIdentity | None = None,
    ) -> TableWriter:
        """Return the writer of a topic, at an address or else at every live broker that Ray knows.

        Raises:
            ClusterNotFoundError: there is no cluster, or no broker answers.
            InvalidConfigError: the credentials contradict each other.
            UnsupportedError: a ``write_identity`` is given, and the topic does not deduplicate.
        """
        identity = Identity.of(credentials)
        named = None if address else discovery.namespace_or_noted(namespace)
        found = joined_address(discovery.service_urls(named)) if named else address
        assert found, "an address is given or found"
        if write_identity is not None and named:
            check_deduplicates(AdminSync(named, identity), TopicName.parse(topic))
        return cls(found, topic, identity, tls_options(named) if found.startswith(ENCRYPTED) else {}, write_identity)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], task: int = 0) -> int:
        """Publish all rows, in order.

        Args:
            task: the number of the task among those that write the same batch.

        Returns:
            The number of rows; all of them are stored. With a ``write_identity``, some may have been before.

        Raises:
            ProducerBusyError: with a ``write_identity``, another run of the same task does not end.
            HeliographError: publishing failed; rows before the failed one are published, later ones may be.
        """
        with connect(self.address, **self.identity.options, **self.tls) as client:
            if self.write_identity is not None:
                with _RepeatableWrite(client, self.topic, self.write_identity, task) as write:
                    return sum(write.send(part) for part in _parts(batches))
            written = 0
            with client.producer(self.topic) as producer:
                for part in _parts(batches):
                    producer.send_many(part[VALUE], **{_ARGUMENTS[name]: part[name] for name in part if name != VALUE})
                    written += len(part[VALUE])
            return written


def check_deduplicates(admin: AdminSync, topic: TopicName) -> None:
    """Do nothing if rows can be written once to a topic, which is created if topics create themselves.

    Raises:
        UnsupportedError: the topic does not deduplicate.
    """
    first = topic.partitions(admin.partitions(str(topic), may_create=True))[0]
    stats = admin.topic_stats(str(first))
    if stats.get("deduplicationStatus") != "Enabled":
        raise UnsupportedError(
            f"{topic} does not deduplicate, so rows cannot be written exactly once: set its policy deduplication, or "
            "leave query out",
            field="query",
        )


_ARGUMENTS = {KEY: "keys", PROPERTIES: "properties", EVENT_TIME: "event_times_ms", ORDERING_KEY: "ordering_keys"}
_Part = dict[str, list[Any]]


class _RepeatableWrite:
    """The producers of one task, one for each partition of the topic.

    The partition of a row depends on its key, or on its number where it has none, so it is the same in each run.
    """

    def __init__(self, client: Client, topic: str, write_identity: WriteIdentity, task: int) -> None:
        self._client = client
        self._topic = TopicName.parse(topic)
        self._name = f"{write_identity.query}/{task}"
        self._base = write_identity.first_sequence_id
        self._stack = ExitStack()
        self._producers: list[Producer] = []
        self._stored: list[int] = []  # rows of this batch that the partition holds already
        self._rows: list[int] = []  # rows of this batch that the partition was given in this run
        self._sent = 0

    def __enter__(self) -> _RepeatableWrite:
        with ExitStack() as opening:
            for name in self._topic.partitions(self._client.partitions(str(self._topic))):
                producer, last = self._opened(str(name))
                opening.callback(producer.close)
                self._producers.append(producer)
                self._stored.append(max(0, last + 1 - self._base))
                self._rows.append(0)
            self._stack = opening.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def send(self, part: _Part) -> int:
        """Publish the rows of a part that are not stored yet; return how many rows it has."""
        keys = part.get(KEY)
        count = len(part[VALUE])
        positions: dict[int, list[int]] = {}
        for position in range(count):
            key = keys[position] if keys else None
            chosen = self._sent // SEND_ROWS_MAX if key is None else java_string_hash(key_text(key))
            positions.setdefault(chosen % len(self._producers), []).append(position)
        for partition, wanted in positions.items():
            known = min(len(wanted), max(0, self._stored[partition] - self._rows[partition]))
            self._rows[partition] += len(wanted)
            if fresh := wanted[known:]:
                arguments = {_ARGUMENTS[name]: _chosen(part[name], fresh) for name in part if name != VALUE}
                self._producers[partition].send_many(_chosen(part[VALUE], fresh), **arguments)
        self._sent += count
        return count

    def _opened(self, topic: str) -> tuple[Producer, int]:
        """Open the producer of one partition; return it with the last sequence id that the topic holds of it."""
        last = self._base - 1
        while True:
            producer = self._free_producer(topic, last)
            if (stored := producer.last_sequence_id) <= last:
                return producer, last
            producer.close()  # an earlier run stored more: number the rows from there on
            last = stored

    def _free_producer(self, topic: str, last: int) -> Producer:
        started = time.monotonic()
        while True:
            producer = self._client.producer(topic, name=self._name, initial_sequence_id=last)
            try:
                return producer.__enter__()
            except (ProducerBusyError, ConnectionLostError) as error:
                producer.close()
                if time.monotonic() - started > OPEN_SECONDS_MAX:
                    raise
                log.info("waiting for another run of task %s to end: %s", self._name, error)
                time.sleep(OPEN_PAUSE_SECONDS)


def _chosen(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    return [values[position] for position in positions]


def _parts(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[_Part]:
    """Yield the rows in parts of ``SEND_ROWS_MAX``, wherever the batches end: a task that runs again has other ones."""
    part: _Part = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        columns = {name: _READ[name](batch.column(name)) for name in COLUMNS if name in batch.schema.names}
        for first in range(0, batch.num_rows, SEND_ROWS_MAX):
            for name, values in columns.items():
                part.setdefault(name, []).extend(values[first : first + SEND_ROWS_MAX])
            while len(part[VALUE]) >= SEND_ROWS_MAX:
                yield {name: values[:SEND_ROWS_MAX] for name, values in part.items()}
                part = {name: values[SEND_ROWS_MAX:] for name, values in part.items()}
    if part and part[VALUE]:
        yield part


def _list(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _properties(column: pa.Array | pa.ChunkedArray) -> list[dict[str, str] | None]:
    return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]


def _milliseconds(column: pa.Array | pa.ChunkedArray) -> list[int | None]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return _list(column.cast(pa.int64()))


_READ: dict[str, Callable[[Any], list[Any]]] = {
    VALUE: _list,
    KEY: _list,
    PROPERTIES: _properties,
    EVENT_TIME: _milliseconds,
    ORDERING_KEY: _list,
}
