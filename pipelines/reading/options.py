"""Options of a read, declared once: the keywords of the functions that read tables, and their checked form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from heliograph.pipelines.planning.access import ClusterAccess, ClusterKeywords, check_keywords
from heliograph.pipelines.planning.conditions import Given, Where, where_of
from heliograph.pipelines.planning.loss import OnDataLoss, check_on_data_loss
from heliograph.pipelines.planning.ranges import Position
from heliograph.pipelines.reading.columns import ALL_COLUMNS, OnUnreadable, check_columns
from heliograph.pipelines.reading.registry import USUAL, GivenDescriptor, RegistryRead, check_read
from heliograph.protocol.message_id import MessageId

StreamStart = None | str | int | datetime | bytes | MessageId | Mapping[int, Position] | Iterable[MessageId | bytes]


class TableKeywords(ClusterKeywords, total=False):
    """The keywords of every read.

    Args:
        on_data_loss: ``fail`` when entries that are wanted were deleted; ``skip`` logs how many, and goes on with those
            that are left.
        on_unreadable: ``fail`` when an entry cannot be read (damaged, an unknown codec, a chunk whose message is not
            complete); ``skip`` leaves it out; ``null`` makes a row with a null value and the reason in ``__error``.
            Both log how many. Encrypted messages are passed through as they are.
        parallelism: the minimum number of tasks; None: Ray Data chooses, and Spark takes two for each core.
        where: conditions that all rows have to satisfy: triples of a column (``__key``, ``__messageId``,
            ``__publishTime``, ``__eventTime``), an operator (``==``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
            ``not null``) and a value. Rows that cannot match are not planned, or not decoded.
    """

    on_data_loss: OnDataLoss
    on_unreadable: OnUnreadable
    parallelism: int | None
    where: Iterable[Given] | None


class CountKeywords(TableKeywords, total=False):
    """The keywords of reads of a topic's present content.

    Args:
        start, end: by partition, or -1 for a topic without partitions, the first position (ledger id, entry id) to
            read, and the first position after the end.
        compacted: read the compacted form: the latest message of each key up to the last compaction, then all others.
            It goes without ``start`` and ``end``.
        latest: the latest value of each key as of now: the compacted form and all others, folded in the task that reads
            a partition, which holds them in memory. A message without a value deletes its key, one without a key is
            left out. It goes without ``start`` and ``end``, and ``where`` is asked of what is left.
    """

    start: Mapping[int, Position] | None
    end: Mapping[int, Position] | None
    compacted: bool
    latest: bool


class RowKeywords(TableKeywords, total=False):
    """The keywords of reads that make rows.

    Args:
        columns: the columns to build; None: ``value``, ``__key``, ``__topic``, ``__messageId``, ``__publishTime``,
            ``__eventTime``, ``__messageProperties``, as in pulsar-spark. There are also ``__orderingKey``,
            ``__producerName``, ``__sequenceId``, ``__schemaVersion``, ``__deliverAt``, ``__encryption`` and
            ``__error``.
        protobuf_descriptor: of messages of type PROTOBUF, for ``schema="registry"``: a FileDescriptorSet as bytes, or a
            generated class.
        recursion_depth: how often a record stands in itself as a struct, 1 to 15; deeper ones are JSON.
    """

    columns: Sequence[str] | None
    protobuf_descriptor: GivenDescriptor
    recursion_depth: int


class ReadKeywords(CountKeywords, RowKeywords, total=False):
    """The keywords of ``read_topic`` and ``topic_dataframe``: for counting, and for rows."""


class StreamKeywords(RowKeywords, total=False):
    """The keywords of ``stream_datasets`` and ``stream``.

    Args:
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        bytes_per_batch: bound of one batch, by the mean size of the entries of each ledger, as bookies store them; a
            batch has at least one entry. None: no bound beside that of entries.
        start: where a stream without a checkpoint begins: ``earliest``; ``latest``, behind what is acknowledged now; a
            time (a datetime, text in ISO 8601, or ms since the epoch), which only rows that were published then or
            later are part of; the id of a message, or one of each partition; or positions as those of ``read_topic``.
            The entry of a named message is read as a whole. None: as the checkpoint says, else ``earliest``.
        until_caught_up: end when all available rows were handled; otherwise run without end.
        subscription: the name of the stream's subscription; None: ``stream-`` and the id in the checkpoint.
    """

    entries_per_batch: int
    bytes_per_batch: int | None
    start: StreamStart
    until_caught_up: bool
    subscription: str | None


@dataclass(frozen=True)
class ReadOptions:
    """Checked keywords of a read. They hold credentials, so they stay with the driver.

    Args:
        access: the cluster, and who reads.
        schema: how values are decoded: ``registry``, None for bytes, or what only Spark understands.
        read: how values are read by the registry.
        columns, on_unreadable, on_data_loss, parallelism, where, start, end, compacted, latest: as the keywords
            say.
    """

    access: ClusterAccess = field(default_factory=ClusterAccess)
    schema: object = None
    read: RegistryRead = USUAL
    columns: tuple[str, ...] = ALL_COLUMNS
    on_unreadable: OnUnreadable = "fail"
    on_data_loss: OnDataLoss = "fail"
    parallelism: int | None = None
    where: Where | None = None
    start: Mapping[int, Position] | None = None
    end: Mapping[int, Position] | None = None
    compacted: bool = False
    latest: bool = False

    @classmethod
    def of(cls, function: str, kind: type, given: Mapping[str, Any], schema: object = None) -> Self:
        """Return the options of a call.

        Args:
            function: its name, for the error.
            kind: the class of its keywords.

        Raises:
            TypeError: the function has no such keyword; names it.
            BadRequestError: a value is none for its keyword; names it.
            InvalidConfigError: the credentials contradict each other.
        """
        check_keywords(function, kind, given)
        on_unreadable, on_data_loss = given.get("on_unreadable", "fail"), given.get("on_data_loss", "fail")
        check_on_data_loss(on_data_loss)
        depth = {"recursion_depth": given["recursion_depth"]} if "recursion_depth" in given else {}
        read = RegistryRead.of(given.get("protobuf_descriptor"), **depth)
        check_read(schema, read)
        return cls(
            access=ClusterAccess.of(given),
            schema=schema,
            read=read,
            columns=check_columns(given.get("columns"), on_unreadable),
            on_unreadable=on_unreadable,
            on_data_loss=on_data_loss,
            parallelism=given.get("parallelism"),
            where=where_of(given.get("where")),
            start=given.get("start") if kind is not StreamKeywords else None,
            end=given.get("end"),
            compacted=given.get("compacted", False),
            latest=given.get("latest", False),
        )
