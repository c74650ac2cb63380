"""The table form of a topic: entries into columns of Arrow record batches. No I/O.

The columns are those of pulsar-spark: the message's bytes, and its metadata. Others are built when they are named:
``__orderingKey``, ``__producerName``, ``__sequenceId``, ``__schemaVersion``, ``__deliverAt``, ``__encryption`` (of a
message whose value is encrypted: the ``MessageMetadata`` of its entry as bytes, with the sealed data keys) and
``__error`` (why the value of a row is null, if the message could not be read). A delayed message is a row at once,
whenever it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heliograph.base.errors import BadRequestError, ChecksumError, ProtocolError, UnsupportedError
from heliograph.pipelines.reading.batch.arrays import numbers_of
from heliograph.pipelines.reading.batch.messages import Messages
from heliograph.pipelines.reading.batch.uniform import uniform_batch
from heliograph.pipelines.reading.batch.varied import varied_batch
from heliograph.pipelines.reading.batch.walk import BatchWalk
from heliograph.pipelines.reading.chunks import ChunkJoiner, Earlier, nothing_earlier
from heliograph.pipelines.reading.column import Column, Values
from heliograph.pipelines.reading.fields import key_of, ordering_key_of, properties_of, text
from heliograph.pipelines.reading.message_ids import SingleIds, batch_ids
from heliograph.protocol import entry as topic_entry
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageMetadata
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
        self._on_unreadable = on_unreadable
        self._chunks = ChunkJoiner()
        self._built = {name: Column(SCHEMA.field(name).type) for name in self._columns}
        # Of the columns that are filled message by message: which, and from what of the metadata
        self._own = [(self._built[name], field) for name, field in _OWN_FIELDS.items() if name in self._built]
        self._common = [(self._built[name], field) for name, field in _COMMON_FIELDS.items() if name in self._built]
        self._ids = SingleIds()
        self.unreadable = 0
        self.last_error = ""
        self.count = 0
        self.payload_bytes = 0

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
            earlier: returns the entries before one, newest first.

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
                self._extend(MESSAGE_ID, [self._ids.bytes_of(place)], 1)
                self._add_common(topic, MessageMetadata(), 1)

    def _add_entry(self, topic: str, place: MessageId, payload: bytes | memoryview, earlier: Earlier) -> None:
        metadata, packed = topic_entry.checked(payload)
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
        plain = topic_entry.plain_view(metadata, packed)
        before = self.count
        if topic_entry.is_batch(metadata):
            self._add_batch(place, metadata, plain)
        else:
            self._add_single(metadata, bytes(plain))
            if MESSAGE_ID in self._built:
                self._built[MESSAGE_ID].append(self._ids.bytes_of(place, first_chunk))
        self.payload_bytes += len(plain)
        self._add_common(topic, metadata, self.count - before)

    def _add_batch(self, place: MessageId, metadata: MessageMetadata, plain: bytes | memoryview) -> None:
        size = metadata.num_messages_in_batch
        found = batch_columns(plain, size)
        rows = len(found.indexes)
        self.count += rows
        own_time = metadata.event_time
        self._extend(VALUE, found.values, rows)
        self._extend(KEY, found.keys, rows)
        if EVENT_TIME in self._built and found.event_times is not None:
            self._built[EVENT_TIME].extend(_event_times(found.event_times, own_time))
        elif EVENT_TIME in self._built:
            self._built[EVENT_TIME].repeat(_time(own_time), rows)
        if PROPERTIES in self._built and found.properties is None:
            self._built[PROPERTIES].repeat([], rows)
        else:
            self._extend(PROPERTIES, found.properties, rows)
        self._extend(ORDERING_KEY, found.ordering_keys, rows)
        if SEQUENCE_ID in self._built:
            self._built[SEQUENCE_ID].extend(_sequence_ids(metadata.sequence_id, found.indexes))
        if MESSAGE_ID in self._built:
            for ids in batch_ids(place, found.indexes, size):
                self._built[MESSAGE_ID].extend(ids)
        self._extend(ERROR, None, rows)

    def _add_single(self, metadata: MessageMetadata, plain: bytes | None, error: str | None = None) -> None:
        self.count += 1
        for column, field in self._own:
            column.append(field(metadata))
        built = self._built
        if VALUE in built:
            built[VALUE].append(None if metadata.null_value else plain)
        if SEQUENCE_ID in built:
            built[SEQUENCE_ID].append(None if error else _sequence_id(metadata.sequence_id))
        if ERROR in built:
            built[ERROR].append(error)

    def _add_common(self, topic: str, metadata: MessageMetadata, rows: int) -> None:
        for column, field in self._common:
            column.repeat(field(metadata), rows)
        if TOPIC in self._built:
            self._built[TOPIC].repeat(topic, rows)

    def _extend(self, name: str, values: Values | None, rows: int) -> None:
        """Add values to a column if it is wanted; None stands for nulls."""
        if name not in self._built:
            return
        if values is None:
            self._built[name].repeat(None, rows)
        else:
            self._built[name].extend(values)

    def take(self) -> pa.RecordBatch:
        """Return the rows as one record batch, and start an empty one."""
        arrays = [self._built[name].take() for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        assert batch.num_rows == self.count, "every column has every row"
        self.count = self.payload_bytes = 0
        return batch


def _schema_version(metadata: MessageMetadata) -> int | None:
    """Return the version of a message's schema, None where it names none in the form that brokers give out."""
    stored = metadata.schema_version
    return version_of(stored) if len(stored) == 8 else None


def _sequence_id(number: int) -> int:
    return min(number, _SEQUENCE_ID_MAX)


def _sequence_ids(first: int, indexes: Sequence[int]) -> Values:
    """Return the sequence ids of a batch, of which ``first`` is that of its first message."""
    if isinstance(indexes, range) and first + len(indexes) <= _SEQUENCE_ID_MAX:
        return numbers_of(pa.int64(), np.arange(first, first + len(indexes)))
    return [_sequence_id(first + index) for index in indexes]


def _time(milliseconds: int) -> int | None:
    """Return microseconds; None for 0, which means none on the wire.

    A time after the year 9999 becomes its end: it must not make the topic unreadable.
    """
    if 0 < milliseconds <= _TIME_MS_MAX:
        return milliseconds * _MICROSECONDS
    return _TIME_MS_MAX * _MICROSECONDS if milliseconds > 0 else None


def _event_times(times: list[int] | npt.NDArray[np.uint64], own: int) -> pa.Array:
    """Return the event times of a batch; a message that has none has that of its entry, ``own``."""
    known = np.asarray(times, np.uint64)
    known = np.where(known == 0, np.uint64(own), known)
    micros = np.minimum(known, np.uint64(_TIME_MS_MAX)).astype(np.int64) * _MICROSECONDS
    return numbers_of(_TIMESTAMP, micros, known == 0)


_OWN_FIELDS: dict[str, Callable[[MessageMetadata], Any]] = {  # of a message that is not in a batch
    KEY: key_of,
    EVENT_TIME: lambda metadata: _time(metadata.event_time),
    PROPERTIES: properties_of,
    ORDERING_KEY: ordering_key_of,
}
_COMMON_FIELDS: dict[str, Callable[[MessageMetadata], Any]] = {  # of all messages in an entry
    PUBLISH_TIME: lambda metadata: _time(metadata.publish_time),
    PRODUCER_NAME: lambda metadata: text(metadata.producer_name) or None,
    DELIVER_AT: lambda metadata: _time(metadata.deliver_at_time),
    SCHEMA_VERSION: _schema_version,
    ENCRYPTION: lambda metadata: metadata.SerializeToString() if metadata.encryption_keys else None,
}


def batch_columns(plain: bytes | memoryview, count: int) -> Messages:
    """Return the messages of a batch as columns, without an object for each message where the format allows it.

    Three ways lead to the same columns (tests compare them). A batch whose messages all have one size and one form, as
    sensors and most benchmarks write them, is a matrix of bytes: its columns are cut out of it at once. In other
    batches the heads of the usual form (key, size, event time, sequence id) are found and read all at once. Where a
    head has more, the messages are walked through, and protobuf reads what is unusual.

    Args:
        plain: the payload of its entry, decompressed. The columns may be views of it.
        count: of messages, as its entry says.

    Raises:
        ProtocolError: the bytes are not so many messages.
    """
    return uniform_batch(plain, count) or varied_batch(plain, count) or BatchWalk(bytes(plain), count).messages()
