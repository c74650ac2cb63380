"""The writer that Ray tasks and Spark executors run to publish the rows of a table.

With a ``WriteIdentity`` every row is stored once, however often its task runs: the task publishes under a name of its
own, the sequence ids of its rows are fixed by the batch and the row, and rows that the topic has are left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from heliograph.base.errors import BadRequestError, ConnectionLostError
from heliograph.client.access import connect
from heliograph.client.discovery import tls_options
from heliograph.client.identity import Identity
from heliograph.client.options import ENCRYPTED
from heliograph.client.schemas.schema import Schema
from heliograph.client.sync.client import Client
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.fields import TOPIC, row_error
from heliograph.pipelines.writing.identity import WriteIdentity, check_deduplicates
from heliograph.pipelines.writing.in_flight import InFlight
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.records import KINDS, RecordSchema, record_of_columns
from heliograph.pipelines.writing.row_groups import RowGroup, missing_topic, row_groups
from heliograph.pipelines.writing.topic_rows import TaskRows
from heliograph.pipelines.writing.topic_schema import RowSchema, schema_of_topic
from heliograph.pipelines.writing.values import RowValues
from heliograph.protocol.topic_name import TopicName
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import parsed

CONNECT_SECONDS_MAX = 60  # that a task waits for a broker that answers (I15)
CONNECT_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)

Topics = str | Sequence[str] | None  # as callers name them


@dataclass(frozen=True)
class TableWriter:
    """A publisher of Arrow batches. It can be pickled.

    The token, or user and password, of the process that makes it goes with it to the tasks that write. So do the paths
    of its files of TLS, which have to exist where the tasks run.

    Args:
        topic: of rows that name none; None: every row has to name one.
        topics: the only ones that rows may name; empty: any.
        schema: of the values; None: they are a column of text or bytes, or whole rows as JSON.
        trace: ``traceparent`` of the program's span that writes the table; empty: none.
    """

    address: str
    topic: str | None
    identity: Identity = field(default_factory=Identity.from_environment, repr=False)
    tls: Mapping[str, str] = field(default_factory=dict)
    write_identity: WriteIdentity | None = None
    columns: WrittenColumns = field(default_factory=WrittenColumns)
    topics: frozenset[str] = frozenset()
    schema: RowSchema | None = None
    trace: str = ""

    @classmethod
    def create(
        cls,
        topic: Topics,
        options: WriteOptions,
        shape: pa.Schema | None = None,
    ) -> TableWriter:
        """Create a writer for one topic, or for the topics named in a column. The schema is registered with each.

        Args:
            topic: one topic; or with a topic column, that of rows that name none, or all that rows may name.
            shape: the columns of the table, if there is a schema.

        Raises:
            BadRequestError: no topic is given, or the columns do not fit the schema.
            IncompatibleSchemaError: a topic has another schema, and its policy does not let it become this one.
            NotFoundError: ``registry``, and the topic has no schema.
            ClusterNotFoundError: there is no cluster, or no broker answers.
            UnsupportedError: a ``write_identity`` is given, and a topic does not deduplicate.
        """
        named = [TopicName.parse(one) for one in ([topic] if isinstance(topic, str) else topic or ())]
        columns, access = options.columns, options.access
        address, write_identity = options.address, options.write_identity
        _check_topics(topic, TOPIC in columns.others, write_identity is not None and not address)
        identity = access.identity or Identity.from_environment()
        if address:
            tls = access.tls or (tls_options(None) if address.startswith(ENCRYPTED) else {})
        else:
            if write_identity is not None:
                admin = access.admin_sync()
                for one in named:
                    check_deduplicates(admin, one)
            address, tls = access.brokers(named)
        usual = str(named[0]) if isinstance(topic, str) or TOPIC not in columns.others else None
        allowed = frozenset() if isinstance(topic, str) else frozenset(map(str, named))
        record = _record(options, shape, named)
        trace = tracing.of_program().current()
        told = "" if trace is None else str(trace)
        writer = cls(address, usual, identity, tls, write_identity, columns, allowed, record, told)
        if record is not None:
            writer.register(named)
        return writer

    def register(self, topics: Sequence[TopicName]) -> None:
        """Register the schema of the values with topics.

        Raises:
            IncompatibleSchemaError: a topic has another schema, and its policy does not let it become this one.
        """
        with connect(self.address, **self.identity.options, **self.tls) as client:
            for topic in topics:
                for one in topic.partitions(client.partitions(str(topic)))[:1]:  # partitions share the schema
                    client.producer(str(one), schema=self._producers_schema).open().close()

    def _connected(self) -> Client:
        """Connect. Brokers that are away, as after a crash, are waited for."""
        started = time.monotonic()
        while True:
            try:
                return connect(self.address, **self.identity.options, **self.tls)
            except ConnectionLostError as error:
                if time.monotonic() - started > CONNECT_SECONDS_MAX:
                    raise
                log.info("waiting for a broker: %s", error)
                time.sleep(CONNECT_PAUSE_SECONDS)

    @property
    def _producers_schema(self) -> Schema | None:
        return None if self.schema is None else self.schema.encoded

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table], task: int = 0) -> int:
        """Publish all rows, in order.

        Args:
            task: the number of the task among the writers of the same batch.

        Returns:
            The number of rows; all of them are stored. With a ``write_identity``, some may have been before.

        Raises:
            BadRequestError: a row is not acceptable; names column, row and limit. Rows before it may be stored.
            ProducerBusyError: with a ``write_identity``, another run of the same task does not end.
            ConnectionLostError: no broker answers for a minute.
            HeliographError: publishing failed; rows before the failed one are published, later ones may be.
        """
        flight, written = InFlight(), 0
        cause = parsed(self.trace)
        with (
            tracing.table_span("write", self.topic or "", {"heliograph.task": task}, cause) as span,
            self._connected() as client,
            TaskRows(client, self._producers_schema, self.write_identity, task, flight, span.context or cause) as rows,
        ):
            for group, topics in row_groups(batches, self.columns, RowValues(self.columns, self.schema)):
                for topic, own in self._by_topic(group, topics):
                    rows.send(topic, own)
                written += len(group.rows)
            flight.wait()
            span.set("heliograph.rows", written)
        return written

    def _by_topic(self, group: RowGroup, topics: list[str | None] | None) -> Iterable[tuple[str, RowGroup]]:
        if topics is None:
            assert self.topic is not None, "without a topic column there is one topic"
            return [(self.topic, group)]
        positions: dict[str, list[int]] = {}
        column = self.columns.others[TOPIC]
        for position, named in enumerate(topics):
            topic = named or self.topic
            if topic is None:
                raise missing_topic(group.rows[position], column)
            if self.topics and topic not in self.topics:
                allowed = ", ".join(sorted(self.topics))
                raise row_error(f"column {column!r}", group.rows[position], f"{topic} is not named", column, allowed)
            positions.setdefault(topic, []).append(position)
        return [(topic, group.chosen(wanted)) for topic, wanted in positions.items()]


def _check_topics(topic: Topics, has_column: bool, checks: bool) -> None:
    if not has_column and (topic is None or (not isinstance(topic, str) and len(topic) != 1)):
        raise BadRequestError(
            "name one topic, or a column with the topic of each row", field="topic", limit="one topic"
        )
    if has_column and checks and (topic is None or isinstance(topic, str)):
        raise BadRequestError(
            "rows that name their topics are written once only to topics that deduplicate: list all of them as topic",
            field="topic",
        )


def _record(options: WriteOptions, shape: pa.Schema | None, topics: Sequence[TopicName]) -> RowSchema | None:
    """Return the schema that a caller names."""
    schema = options.schema
    if schema is None:
        return None
    assert shape is not None, "the table's columns are known if a schema is given"
    fields = _fields_of_value(shape, options.columns)
    if schema == "avro" or schema == "json":
        return record_of_columns(schema, fields)
    if schema == "registry":
        if not topics:
            raise BadRequestError("schema 'registry' needs a named topic", field="schema")
        versions = options.access.admin_sync().schemas.versions(str(topics[0]))
        record: RowSchema = schema_of_topic(str(topics[0]), versions, options.read)
    elif isinstance(schema, Schema):
        record = RecordSchema(schema)
    else:
        raise BadRequestError(f"schema is {schema!r}", field="schema", limit=", ".join(KINDS))
    record.check([one.name for one in fields])
    return record


def _fields_of_value(shape: pa.Schema, columns: WrittenColumns) -> list[pa.Field]:
    columns.check(shape.names, "table")
    if columns.value is None:
        return [shape.field(name) for name in columns.row(shape.names)]
    kind = shape.field(columns.value).type
    if not pa.types.is_struct(kind):
        raise BadRequestError(
            f"column {columns.value!r} has the type {kind}: a schema takes whole rows, or a column of structs",
            field=columns.value,
            limit="struct",
        )
    return list(kind)
