"""The table form of a topic: entries into columns of Arrow record batches. No I/O.

The columns are those of pulsar-spark: the message's bytes, and its metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.batch import varint
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

VALUE, KEY, TOPIC, MESSAGE_ID = "value", "__key", "__topic", "__messageId"
PUBLISH_TIME, EVENT_TIME, PROPERTIES = "__publishTime", "__eventTime", "__messageProperties"

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
    ]
)
ALL_COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
META_COLUMNS = ALL_COLUMNS[1:]

# I15: a record batch closes after this many payload bytes (one entry more at most) or rows.
BATCH_BYTES_MAX = 4 << 20
BATCH_ROWS_MAX = 16_384

_BATCH_INDEX, _BATCH_SIZE = b"\x20", b"\x30"  # tags of MessageIdData
_MICROSECONDS = 1000  # in a millisecond
_TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999, where Python's and Spark's times end


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested columns, in their order; all columns for None.

    Raises:
        BadRequestError: there is no such column.
    """
    if columns is None:
        return ALL_COLUMNS
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown or not columns:
        raise BadRequestError(
            f"there is no column {unknown[0]!r}" if unknown else "columns is empty: name at least one",
            field="columns",
            limit=", ".join(ALL_COLUMNS),
        )
    return tuple(columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some of the columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class Rows:
    """A builder of record batches, one after another. Only the requested columns are built."""

    def __init__(self, columns: Sequence[str] = ALL_COLUMNS) -> None:
        self._columns = tuple(columns)
        self._schema = schema_of(columns)
        self._wanted = frozenset(columns)
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.payload_bytes = 0
        self._lists: dict[str, list[Any]] = {name: [] for name in self._columns}

    @property
    def is_full(self) -> bool:
        """Return whether the batch has reached a bound, so that the caller must ``take`` it."""
        return self.payload_bytes >= BATCH_BYTES_MAX or self.count >= BATCH_ROWS_MAX

    def add_entry(self, topic: str, partition: int, ledger_id: int, entry_id: int, payload: bytes | memoryview) -> None:
        """Add the messages of one entry. Markers, which brokers write for themselves, are skipped.

        Raises:
            ProtocolError, ChecksumError: the entry is damaged, although the ledger's own checksum is right.
            UnsupportedError: the entry is a chunk of a message, is encrypted, or has an unknown codec.
        """
        topic_entry.verify(payload)
        metadata, packed = topic_entry.split(payload)
        if metadata.HasField("marker_type"):
            return
        place = f"{ledger_id}:{entry_id} of {topic}"
        if metadata.num_chunks_from_msg > 1:
            raise UnsupportedError(f"entry {place} is a chunk of a message; chunked messages cannot be read as a table")
        if metadata.encryption_keys:
            raise UnsupportedError(f"entry {place} is encrypted; encrypted messages cannot be read as a table")
        plain = topic_entry.plain_payload(metadata, packed)
        self.payload_bytes += len(plain)
        before = self.count
        if topic_entry.is_batch(metadata):
            indexes = self._add_batch(metadata, plain)
        else:
            self._add_single(metadata, plain)
            indexes = None
        self._add_common(topic, MessageId(ledger_id, entry_id, partition), metadata, indexes, self.count - before)

    def _add_batch(self, metadata: MessageMetadata, plain: bytes) -> list[int]:
        values, singles, indexes = [], [], []
        for index, (single, value) in enumerate(topic_entry.iterate_batch(metadata, plain)):
            if single.compacted_out:
                continue
            values.append(None if single.null_value else value)
            singles.append(single)
            indexes.append(index)
        self.count += len(values)
        self._extend(VALUE, lambda: values)
        self._extend(KEY, lambda: map(_key, singles))
        self._extend(EVENT_TIME, lambda: [_event_time(single) or _event_time(metadata) for single in singles])
        self._extend(PROPERTIES, lambda: map(_properties, singles))
        return indexes

    def _add_single(self, metadata: MessageMetadata, plain: bytes) -> None:
        self.count += 1
        self._extend(VALUE, lambda: [None if metadata.null_value else plain])
        self._extend(KEY, lambda: [_key(metadata)])
        self._extend(EVENT_TIME, lambda: [_event_time(metadata)])
        self._extend(PROPERTIES, lambda: [_properties(metadata)])

    def _add_common(
        self, topic: str, entry: MessageId, metadata: MessageMetadata, indexes: list[int] | None, rows: int
    ) -> None:
        self._extend(TOPIC, lambda: [topic] * rows)
        self._extend(PUBLISH_TIME, lambda: [_time(metadata.publish_time)] * rows)
        self._extend(MESSAGE_ID, lambda: message_id_bytes(entry, indexes, metadata.num_messages_in_batch))

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


def message_id_bytes(entry: MessageId, indexes: Sequence[int] | None, batch_size: int) -> Iterator[bytes]:
    """Yield the serialized ids of an entry's messages: of the batch's ``indexes``, or of a single message (None).

    The common prefix is serialized once; each result equals ``MessageId.to_bytes``.
    """
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
        return base64.b64decode(metadata.partition_key)
    return metadata.partition_key.encode()


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
