"""Options of a write, declared once: the keywords of the functions that write tables, and their checked form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from heliograph.pipelines.planning.access import ClusterAccess, ClusterKeywords, check_keywords
from heliograph.pipelines.reading.registry import USUAL, GivenDescriptor, RegistryRead, check_read
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.fields import FIELDS, VALUE
from heliograph.pipelines.writing.identity import WriteIdentity, writes_in_doubt
from heliograph.pipelines.writing.records import WrittenSchema


class WriteKeywords(ClusterKeywords, total=False):
    """The keywords of ``write_dataset`` and ``write_dataframe``. The credentials go with the tasks.

    Args:
        value: the column with the value, ``value`` unless it is named, text or bytes, or with a ``schema`` structs;
            None: the whole row in JSON or by the schema, but for columns that begin with ``__``. A null deletes its key
            from the compacted topic.
        key, ordering_key: the columns with the keys, text or bytes; None: no keys.
        properties, event_time, deliver_at: the columns with a map of text to text, and times or ms since the epoch.
        deliver_after: the column with the delay of delivery from when the row is sent; seconds, or a duration.
        topic_column: the column with the topic of each row; a task writes to at most 256.
        protobuf_descriptor: of messages of type PROTOBUF, for ``schema="registry"``: a FileDescriptorSet as bytes, or a
            generated class.
        query, batch_id: write every row once, however often tasks run: the topic has to deduplicate, and its rows come
            in the same order when a task runs again. ``batch_id`` counts the writer's batches up.
        on_doubt: what a task does that may have written the batch so long ago that the topic has forgotten it (a day,
            by the policy ``deduplication_seconds``): ``fail``, with MayBeTwiceError, or ``write``.
        address: ``pulsar://host:port[,host:port]``; None: the cluster's gateway or Ray tells it.
    """

    value: str | None
    key: str | None
    properties: str | None
    event_time: str | None
    ordering_key: str | None
    deliver_at: str | None
    deliver_after: str | None
    topic_column: str | None
    protobuf_descriptor: GivenDescriptor
    query: str | None
    batch_id: int
    on_doubt: Literal["fail", "write"]
    address: str | None


@dataclass(frozen=True)
class WriteOptions:
    """Checked keywords of a write.

    Args:
        columns: which column holds which field.
        access: the cluster, and who writes.
        address: of brokers; None: ``access`` finds it.
        write_identity: makes every row stored once; None: a task that runs again stores its rows again.
        schema: of the values: ``avro`` or ``json``, a record made of the columns; ``registry``, the one that the topic
            has; or an AvroSchema or a JsonSchema. None: they are a column of text or bytes, or whole rows as JSON.
        read: with the definition of messages of type PROTOBUF, for ``registry``.
    """

    columns: WrittenColumns = field(default_factory=WrittenColumns)
    access: ClusterAccess = field(default_factory=ClusterAccess)
    address: str | None = None
    write_identity: WriteIdentity | None = None
    schema: WrittenSchema = None
    read: RegistryRead = USUAL

    @classmethod
    def of(cls, function: str, given: Mapping[str, Any], schema: WrittenSchema) -> Self:
        """Return the options of a call; ``given`` is ``WriteKeywords``.

        Args:
            function: its name, for the error.

        Raises:
            TypeError: the function has no such keyword; names it.
            BadRequestError: a value is none for its keyword; names it.
            InvalidConfigError: the credentials contradict each other.
        """
        check_keywords(function, WriteKeywords, given)
        named = {name: given[name] for name in FIELDS if name in given and name != VALUE}
        query = given.get("query")
        read = RegistryRead.of(given.get("protobuf_descriptor"))
        check_read(schema, read)
        return cls(
            columns=WrittenColumns.named(given.get("value", VALUE), **named),
            access=ClusterAccess.of(given),
            address=given.get("address"),
            write_identity=None
            if query is None
            else WriteIdentity(query, given.get("batch_id", 0), writes_in_doubt(given.get("on_doubt", "fail"))),
            schema=schema,
            read=read,
        )
