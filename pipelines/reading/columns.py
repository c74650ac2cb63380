"""The table form of a topic: entries into columns of Arrow record batches. No I/O.

The columns are those of pulsar-spark: the message's bytes, and its metadata. Others are built when they are named:
``__orderingKey``, ``__producerName``, ``__sequenceId``, ``__schemaVersion``, ``__deliverAt``, ``__encryption`` (of a
message whose value is encrypted: the ``MessageMetadata`` of its entry as bytes, with the sealed data keys) and
``__error`` (why the value of a row is null, if the message could not be read). A delayed message is a row at once,
whenever it is delivered.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from heliograph.base.errors import BadRequestError, ChecksumError, ProtocolError, UnsupportedError
from heliograph.pipelines.reading.chunks import ChunkJoiner, Earlier, nothing_earlier
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.batch import varint
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from heliograph.protocol.schema import version_of

VALUE, KEY, TOPIC, MESSAGE_ID = "value", "__key", "__topic", "__messageId"
PUBLISH_TIME, EVENT_TIME, PROPERTIES = "__publishTime", "__eventTime", "__messageProperties"
ORDERING_KEY, PRODUCER_NAME, SEQUENCE_ID = "__orderingKey", "__producerName", "__sequenceId"
DELIVER_AT, ENCRYPTION, ERROR, SCHEMA_VERSION = "__deliverAt", "__encryption", "__error", "__schemaVersion"

OnUnreadable = Literal["fail", "skip", "null"]
ON_UNREADABLE: tuple[OnUnreadable, ...] = ("fail", "skip", "null")

_TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field(VALUE, pa.binary()),
        pa.field(KEY, pa.binary()),
        pa.field(TOPIC, pa.string()),
        pa.field(MESSAGE_ID, pa.binary()),
        pa.field(PUBLISH_TIME, _TIMESTAMP),
        pa.field(EVENT_TIME, _TIMESTAMP),
        pa.field(PROPERTIES, pa.map_(pa.string(), pa.string())),
        pa.field(ORDERING_KEY, pa.binary()),
        pa.field(PRODUCER_NAME, pa.string()),
        pa.field(SEQUENCE_ID, pa.int64()),
        pa.field(DELIVER_AT, _TIMESTAMP),
        pa.field(ENCRYPTION, pa.binary()),
        pa.field(ERROR, pa.string()),
        pa.field(SCHEMA_VERSION, pa.int64()),
    ]
)
EVERY_COLUMN: tuple[str, ...] = tuple(SCHEMA.names)
ALL_COLUMNS: tuple[str, ...] = EVERY_COLUMN[:7]  # unless others are named
META_COLUMNS = EVERY_COLUMN[1:]

# I15: a record batch closes after this many payload bytes (one entry more at most) or rows.
BATCH_BYTES_MAX = 4 << 20
BATCH_ROWS_MAX = 16_384

_BATCH_INDEX, _BATCH_SIZE = b"\x20", b"\x30"  # tags of MessageIdData
_SEQUENCE_ID_MAX = (1 << 63) - 1
_MICROSECONDS = 1000  # in a millisecond
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999, where Python's and Spark's times end


def check_columns(columns: Sequence[str] | None, on_unreadable: str = "fail") -> tuple[str, ...]:
    """Return the requested columns, in their order; for None the seven of pulsar-spark, and ``__error`` for ``null``.

    Raises:
        BadRequestError: there is no such column, or no such ``on_unreadable``.
    """
    if on_unreadable not in ON_UNREADABLE:
        raise BadRequestError(
            f"on_unreadable is {on_unreadable!r}", field="on_unreadable", limit=", ".join(ON_UNREADABLE)
        )
    if columns is None:
        return (*ALL_COLUMNS, ERROR) if on_unreadable == "null" else ALL_COLUMNS
    unknown = [name for name in columns if name not in EVERY_COLUMN]
    if unknown or not columns:
        raise BadRequestError(
            f"there is no column {unknown[0]!r}" if unknown else "columns is empty: name at least one",
            field="columns",
            limit=", ".join(EVERY_COLUMN),
        )
    return tuple(columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some of the columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class Rows:
    """A builder of record batches, one after another. Only the requested columns are built.

    Args:
        on_unreadable: what becomes of an entry that cannot be read: ``fail`` raises, ``skip`` leaves it out, ``null``
            makes a row of it, whose value is null and whose ``__error`` says why.

    Attributes:
        unreadable: entries that could not be read, over all batches.
        last_error: why the last of them could not.
    """

    def __init__(self, columns: Sequence[str] = ALL_COLUMNS, on_unreadable: OnUnreadable = "fail") -> None:
        self._columns = tuple(columns)
        self._schema = schema_of(columns)
        self._wanted = frozenset(columns)
        self._on_unreadable = on_unreadable
        self._chunks = ChunkJoiner()
        self.unreadable = 0
        self.last_error = ""
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.payload_bytes = 0
        self._lists: dict[str, list[Any]] = {name: [] for name in self._columns}

    @property
    def is_full(self) -> bool:
        """Return whether the batch has reached a bound, so that the caller must ``take`` it."""
        return self.payload_bytes >= BATCH_BYTES_MAX or self.count >= BATCH_ROWS_MAX

    def add_entry(
        self,
        topic: str,
        partition: int,
        ledger_id: int,
        entry_id: int,
        payload: bytes | memoryview,
        earlier: Earlier = nothing_earlier,
    ) -> None:
        """Add the messages of one entry. Markers, which brokers write for themselves, are skipped.

        Args:
            earlier: returns the entries of the ledger before one, newest first.

        Raises:
            ProtocolError, ChecksumError: the entry is damaged, although the ledger's own checksum is right.
            UnsupportedError: the entry has an unknown codec, or is a chunk of a message that is not complete.
        """
        place = MessageId(ledger_id, entry_id, partition)
        try:
            self._add_entry(topic, place, payload, earlier)
        except (ProtocolError, ChecksumError, UnsupportedError) as error:
            reason = f"entry {ledger_id}:{entry_id} of {topic} cannot be read: {error}"
            if self._on_unreadable == "fail":
                raise type(error)(f"{reason}; on_unreadable='skip' or 'null' goes on") from error
            self.unreadable += 1
            self.last_error = reason
            if self._on_unreadable == "null":
                self._add_single(MessageMetadata(), None, str(error))
                self._add_common(topic, place, MessageMetadata(), None, 1)

    def _add_entry(self, topic: str, place: MessageId, payload: bytes | memoryview, earlier: Earlier) -> None:
        topic_entry.verify(payload)
        metadata, packed = topic_entry.split(payload)
        if metadata.HasField("marker_type"):
            return
        first_chunk: tuple[int, int] | None = None
        if metadata.num_chunks_from_msg > 1:
            if metadata.encryption_keys:
                raise UnsupportedError("it is a chunk of an encrypted message")
            joined = self._chunks.add(place.ledger_id, place.entry_id, metadata, packed, earlier)
            if joined is None:
                return
            packed = memoryview(joined.payload)
            first_chunk = joined.first_entry
        plain = topic_entry.plain_payload(metadata, packed)
        before = self.count
        if topic_entry.is_batch(metadata):
            indexes = self._add_batch(metadata, plain)
        else:
            self._add_single(metadata, plain)
            indexes = None
        self.payload_bytes += len(plain)
        self._add_common(topic, place, metadata, indexes, self.count - before, first_chunk)

    def _add_batch(self, metadata: MessageMetadata, plain: bytes) -> list[int]:
        values, singles, indexes = [], [], []
        for index, (single, value) in enumerate(topic_entry.iterate_batch(metadata, plain)):
            if single.compacted_out:
                continue
            values.append(None if single.null_value else value)
            singles.append(single)
            indexes.append(index)
        self.count += len(values)
        first = metadata.sequence_id
        self._extend(VALUE, lambda: values)
        self._extend(KEY, lambda: map(_key, singles))
        self._extend(EVENT_TIME, lambda: [_event_time(single) or _event_time(metadata) for single in singles])
        self._extend(PROPERTIES, lambda: map(_properties, singles))
        self._extend(ORDERING_KEY, lambda: map(_ordering_key, singles))
        self._extend(SEQUENCE_ID, lambda: [_sequence_id(first + index) for index in indexes])
        self._extend(ERROR, lambda: [None] * len(values))
        return indexes

    def _add_single(self, metadata: MessageMetadata, plain: bytes | None, error: str | None = None) -> None:
        self.count += 1
        self._extend(VALUE, lambda: [None if metadata.null_value else plain])
        self._extend(KEY, lambda: [_key(metadata)])
        self._extend(EVENT_TIME, lambda: [_event_time(metadata)])
        self._extend(PROPERTIES, lambda: [_properties(metadata)])
        self._extend(ORDERING_KEY, lambda: [_ordering_key(metadata)])
        self._extend(SEQUENCE_ID, lambda: [None if error else _sequence_id(metadata.sequence_id)])
        self._extend(ERROR, lambda: [error])

    def _add_common(
        self,
        topic: str,
        entry: MessageId,
        metadata: MessageMetadata,
        indexes: list[int] | None,
        rows: int,
        first_chunk: tuple[int, int] | None = None,
    ) -> None:
        self._extend(TOPIC, lambda: [topic] * rows)
        self._extend(PUBLISH_TIME, lambda: [_time(metadata.publish_time) or None] * rows)
        self._extend(MESSAGE_ID, lambda: message_id_bytes(entry, indexes, metadata.num_messages_in_batch, first_chunk))
        self._extend(PRODUCER_NAME, lambda: [metadata.producer_name or None] * rows)
        self._extend(DELIVER_AT, lambda: [_time(max(0, metadata.deliver_at_time)) or None] * rows)
        self._extend(SCHEMA_VERSION, lambda: [_schema_version(metadata)] * rows)
        shown = metadata.encryption_keys and ENCRYPTION in self._wanted
        self._extend(ENCRYPTION, lambda: [metadata.SerializeToString() if shown else None] * rows)

    def _extend(self, name: str, values: Callable[[], Iterable[Any]]) -> None:
        if name in self._wanted:
            self._lists[name].extend(values())

    def take(self) -> pa.RecordBatch:
        """Return the rows as one record batch, and start an empty one."""
        arrays = [_array(name, self._lists[name]) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        assert batch.num_rows == self.count, "every column has every row"
        self._reset()
        return batch


def message_id_bytes(
    entry: MessageId, indexes: Sequence[int] | None, batch_size: int, first_chunk: tuple[int, int] | None = None
) -> Iterator[bytes]:
    """Yield the serialized ids of an entry's messages: of the batch's ``indexes``, or of a single message (None).

    The common prefix is serialized once; each result equals ``MessageId.to_bytes``. The id of a message in chunks also
    names the position (ledger id, entry id) of its first one.
    """
    if first_chunk is not None:
        whole = entry.to_data()
        whole.first_chunk_message_id.ledger_id, whole.first_chunk_message_id.entry_id = first_chunk
        yield whole.SerializeToString()
        return
    start = entry.to_bytes()
    if indexes is None:
        yield start
        return
    end = _BATCH_SIZE + varint(batch_size)
    for index in indexes:
        yield start + _BATCH_INDEX + varint(index) + end


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    if not metadata.HasField("partition_key"):
        return None
    if metadata.partition_key_b64_encoded:
        with contextlib.suppress(ValueError):  # a producer may say so of any text
            return base64.b64decode(metadata.partition_key, validate=True)
    return metadata.partition_key.encode()


def _ordering_key(metadata: MessageMetadata | SingleMessageMetadata) -> bytes | None:
    return metadata.ordering_key if metadata.HasField("ordering_key") else None


def _schema_version(metadata: MessageMetadata) -> int | None:
    """Return the version of a message's schema, None where it names none in the form that brokers give out."""
    stored = metadata.schema_version
    return version_of(stored) if len(stored) == 8 else None


def _sequence_id(number: int) -> int:
    return min(number, _SEQUENCE_ID_MAX)


def _event_time(metadata: MessageMetadata | SingleMessageMetadata) -> int | None:
    return _time(metadata.event_time) or None  # 0 means none on the wire


def _time(milliseconds: int) -> int:
    """Return microseconds. A time after the year 9999 becomes its end: it must not make the topic unreadable."""
    return min(milliseconds, _TIME_MS_MAX) * _MICROSECONDS


def _properties(metadata: MessageMetadata | SingleMessageMetadata) -> list[tuple[str, str]]:
    return list({pair.key: pair.value for pair in metadata.properties}.items())  # a map has a key once: the last wins


def _array(name: str, values: list[Any]) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name == PROPERTIES and not any(values):
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array([0] * (len(values) + 1), pa.int32()), none, none)
    return pa.array(values, kind)
