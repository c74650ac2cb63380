"""Topics as Ray Datasets: read tasks fetch ledger ranges from bookies in parallel; write tasks produce."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Unpack

import pyarrow as pa
import ray.data
from ray.data import Dataset
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult
from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.client.ray_release import require_node
from heliograph.pipelines.planning.patience import STREAM_SECONDS
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange
from heliograph.pipelines.ray_data.source import TableRead, TopicDatasource
from heliograph.pipelines.reading.options import ReadKeywords, ReadOptions
from heliograph.pipelines.reading.registry import REGISTRY, TopicSchemas, is_registry
from heliograph.pipelines.reading.topic_plan import plan_table
from heliograph.pipelines.writing.options import WriteKeywords, WriteOptions
from heliograph.pipelines.writing.records import WrittenSchema
from heliograph.pipelines.writing.table_writer import TableWriter

log = logging.getLogger(__name__)


class TopicDatasink(Datasink[int]):
    """Publishes rows.

    With a writer that has a write identity, a write task that runs again publishes only those of its rows that an
    earlier run did not: the number of the task and of the row in it are what the topic deduplicates by. Without one, it
    publishes all of them again.

    There is nothing to commit: rows are durable, and consumers see them, before their task ends. So a failed write
    leaves the rows of the tasks that ended, and of the others the first ones.

    Attributes:
        rows: how many rows are stored, once the write is complete.
    """

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self.rows = 0

    @override
    def get_name(self) -> str:
        return "HeliographTopic"

    @override
    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        return self._writer.write((BlockAccessor.for_block(block).to_arrow() for block in blocks), ctx.task_idx)

    @override
    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self.rows = sum(write_result.write_returns)

    @override
    def on_write_failed(self, error: Exception) -> None:
        named, identity = self._writer.topic or "the topics of the rows", self._writer.write_identity
        again = (
            "the same rows again under another call would be stored twice"
            if identity is None
            else f"a call with query={identity.query!r} and batch_id={identity.batch_id} stores the missing rows"
        )
        told = f"writing to {named} failed, and a part of the rows may be stored: {again}"
        log.warning("%s: %s", told, error)
        error.add_note(told)


def read_topic(topic: str, *, schema: Literal["registry"] | None = None, **keywords: Unpack[ReadKeywords]) -> Dataset:
    """Return all messages of a topic that are acknowledged now, as a Dataset.

    The columns are those of ``reading/columns.py``. Within a block, rows are in publish order of their partition. A
    cluster that does not answer is waited for, up to ten minutes, here and in the read tasks.

    Args:
        schema: ``registry`` decodes values by the schemas of the topic: Avro, JSON, Protobuf, primitive ones, and pairs
            of key and value. The fields of the newest version replace ``value``. A value that does not fit is treated
            by ``on_unreadable``; ``null`` also keeps its bytes in ``__badValue``. None keeps the bytes.
        keywords: those of ``ReadKeywords``, which says what they mean.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries at or after ``start`` were deleted.
        BadRequestError: there is no such column, condition or schema.
        NotFoundError: the topic has no schema.
        UnsupportedError: the topic has a schema that cannot be decoded, or this process uses Ray Client (``ray://``).
    """
    require_node("read_topic")
    check_schema(schema)
    options = ReadOptions.of("read_topic", ReadKeywords, keywords, schema)
    ranges, schemas = plan_table(topic, options, STREAM_SECONDS)
    return ranges_dataset(ranges, options, schemas)


def check_schema(schema: object) -> None:
    """Do nothing if Datasets can be read with a schema.

    Raises:
        BadRequestError: it is neither ``registry`` nor None. Schemas of JSON as a text are Spark's.
    """
    if schema is not None and not is_registry(schema):
        raise BadRequestError(f"schema is {schema!r}", field="schema", limit=f"{REGISTRY}, or None")


def ranges_dataset(ranges: Sequence[LedgerRange], options: ReadOptions, schemas: TopicSchemas | None) -> Dataset:
    """Return the rows of planned ranges."""
    table = TableRead(options.columns, options.on_unreadable, schemas, options.where)
    source = TopicDatasource(ranges, table, 1 if options.parallelism else TASK_BYTES_MIN)
    dataset: Dataset = ray.data.read_datasource(source, override_num_blocks=options.parallelism)
    return dataset


def write_dataset(
    dataset: Dataset,
    topic: str | Sequence[str] | None,
    *,
    schema: WrittenSchema = None,
    **keywords: Unpack[WriteKeywords],
) -> int:
    """Publish every row of a Dataset, each block in its order.

    No row is missing when this returns. Without ``query`` rows can be in the topic more than once: Ray may run a write
    task again after a failure. Where it raises, the rows of some tasks are published: there is nothing to take back.
    With ``query``, the same call, by this program or the next, publishes those that are missing and no other.

    Args:
        topic: one; with ``topic_column`` that of rows with none, or a sequence of all that rows may name, or None.
        schema: of the values: ``avro`` or ``json``, a record made of the columns, which is registered with the named
            topics before a row is written; ``registry``, the one that the topic has, which needs the
            ``protobuf_descriptor`` of messages of type PROTOBUF; or an AvroSchema or JsonSchema.
        keywords: those of ``WriteKeywords``, which says what they mean.

    Returns:
        The number of rows, all of which are stored.

    Raises:
        BadRequestError: there is no such column, no topic, or a row is not acceptable; names column, row and limit.
        IncompatibleSchemaError: a topic has another schema, and its policy does not let it become this one; no row was
            written.
        UnsupportedError: ``query`` is given, and the topic does not deduplicate.
        ClusterNotFoundError: no address was given and no cluster was found.
    """
    options = WriteOptions.of("write_dataset", keywords, schema)
    writer = TableWriter.create(topic, options, _shape_of(dataset) if schema is not None else None)
    with in_order(dataset, needed=options.write_identity is not None):
        dataset.write_datasink(sink := TopicDatasink(writer))
    return sink.rows


@contextmanager
def in_order(dataset: Dataset, *, needed: bool) -> Iterator[None]:
    """Give blocks out in the order of the Dataset, not in the order in which they are ready.

    The number of a write task stands for its rows in the topic, in the next run of the program, too.
    """
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = before or needed
    try:
        yield
    finally:
        options.preserve_order = before


def _shape_of(dataset: Dataset) -> pa.Schema:
    """Return the columns of a Dataset, which may run its first task."""
    found = dataset.schema()
    base = None if found is None else found.base_schema
    if not isinstance(base, pa.Schema):
        names, types = ([], []) if found is None else (found.names, found.types)
        if not all(isinstance(kind, pa.DataType) for kind in types):
            raise BadRequestError("the columns of the Dataset have no Arrow types", field="schema")
        base = pa.schema(zip(names, types, strict=True))
    return base
