"""Message ids: the place of a message, as numbers, bytes, base64 and text."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from google.protobuf.message import DecodeError

from heliograph.base.errors import InvalidMessageIdError
from heliograph.protocol.pulsar_pb2 import MessageIdData

_U64 = 1 << 64
_I64_MAX = (1 << 63) - 1
_BYTES_MAX = 64 << 10  # of a serialized id; ids with a chunk or an ack set are far smaller


def to_signed(value: int) -> int:
    """Return the signed number for an unsigned 64-bit number of the wire; 2^64-1 is -1."""
    return value - _U64 if value > _I64_MAX else value


def to_unsigned(value: int) -> int:
    """Return the unsigned 64-bit number that the wire has for a signed one."""
    return value & (_U64 - 1)


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """The place of a message in its topic. The ids of a topic have the order of its messages.

    Attributes:
        ledger_id, entry_id: the entry; -1 in both stands for the start of a topic.
        partition: -1 if the topic is not partitioned.
        batch_index: the index in the entry's batch, -1 if the entry is a single message.
        batch_size: the messages of that batch, 0 if it is not known or there is no batch. Not compared.
        topic: the full name of the topic if it is known. Not compared and not part of the bytes.
        first_chunk: ledger and entry of the first chunk of a message that was sent in chunks, if it is known; the id is
            that of the last one. Not compared.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = field(default=0, compare=False)
    topic: str = field(default="", compare=False)
    first_chunk: tuple[int, int] | None = field(default=None, compare=False)

    EARLIEST: ClassVar[MessageId]
    LATEST: ClassVar[MessageId]

    def __setstate__(self, state: list[Any]) -> None:
        """Take the fields of a pickle, also of one that an earlier release made, which had no ``first_chunk``."""
        for each, value in zip(fields(self), [*state, None], strict=False):
            object.__setattr__(self, each.name, value)

    @property
    def begin(self) -> MessageId:
        """Return the id of the message's first chunk, and this one if it has no others: reading begins there."""
        return self if self.first_chunk is None else MessageId(*self.first_chunk, self.partition, topic=self.topic)

    def to_data(self) -> MessageIdData:
        """Return the form of commands."""
        data = MessageIdData(ledger_id=to_unsigned(self.ledger_id), entry_id=to_unsigned(self.entry_id))
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
            if self.batch_size > 0:
                data.batch_size = self.batch_size
        if self.first_chunk is not None:
            data.first_chunk_message_id.CopyFrom(self.begin.to_data())
        return data

    @staticmethod
    def from_data(data: MessageIdData, topic: str = "") -> MessageId:
        """Return the id for ``data``, the form of commands, in the topic of the full name ``topic``."""
        first = data.first_chunk_message_id if data.HasField("first_chunk_message_id") else None
        return MessageId(
            to_signed(data.ledger_id),
            to_signed(data.entry_id),
            data.partition,
            data.batch_index,
            data.batch_size,
            topic,
            None if first is None else (to_signed(first.ledger_id), to_signed(first.entry_id)),
        )

    def to_bytes(self) -> bytes:
        """Return what Pulsar's clients call a serialized message id."""
        return self.to_data().SerializeToString()

    @staticmethod
    def from_bytes(data: bytes, topic: str = "") -> MessageId:
        """Return the id for a serialized message id.

        Args:
            data: Bytes of ``to_bytes``, here or in a client of Pulsar.
            topic: Full name of the topic that the id is of; empty if it is not known.

        Raises:
            InvalidMessageIdError: the bytes are not a message id.
        """
        if len(data) > _BYTES_MAX:
            raise InvalidMessageIdError("the message id is too long", field="messageId", limit=f"{_BYTES_MAX} bytes")
        try:
            parsed = MessageIdData.FromString(data)
        except DecodeError as error:
            raise InvalidMessageIdError("the bytes are not a message id", field="messageId") from error
        if not parsed.IsInitialized():  # decoding lets missing fields pass
            raise InvalidMessageIdError("the message id lacks its ledger id or entry id", field="messageId")
        return MessageId.from_data(parsed, topic)

    def to_base64(self) -> str:
        """Return the form of the WebSocket and REST interfaces."""
        return base64.b64encode(self.to_bytes()).decode()

    @staticmethod
    def from_base64(text: str, topic: str = "") -> MessageId:
        """Return the id for the form of the WebSocket and REST interfaces.

        Args:
            text: Base64 of what ``from_bytes`` takes.
            topic: Full name of the topic that the id is of; empty if it is not known.

        Raises:
            InvalidMessageIdError: the text is not base64 of a message id.
        """
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidMessageIdError(f"{text!r:.80} is not base64", field="messageId") from error
        return MessageId.from_bytes(data, topic)

    @staticmethod
    def parse(text: str, topic: str = "") -> MessageId:
        """Return the id for a text as ``str`` makes it; ``earliest`` and ``latest`` are ids, too.

        Args:
            text: ``ledger:entry[:partition[:batch_index[:batch_size]]]``, for a message in chunks that of its first,
                a semicolon and that of its last. An id in a batch can be acknowledged if it has the size of the
                batch, as that of a received message does.
            topic: Full name of the topic that the id is of; empty if it is not known.

        Raises:
            InvalidMessageIdError: the text has another form.
        """
        if text in ("earliest", "latest"):
            return MessageId.EARLIEST if text == "earliest" else MessageId.LATEST
        if isinstance(text, str) and text.count(";") == 1:
            first, _, last = text.partition(";")
            begin, found = MessageId.parse(first, topic), MessageId.parse(last, topic)
            if begin.partition != found.partition or not begin < found:
                raise InvalidMessageIdError(f"{text!r:.80} does not name the chunks of a message", field="messageId")
            return replace(found, first_chunk=(begin.ledger_id, begin.entry_id))
        try:
            numbers = [int(part) for part in text.split(":")]
        except (AttributeError, ValueError):
            numbers = []
        if not 2 <= len(numbers) <= 5 or not all(-1 <= number <= _I64_MAX for number in numbers):
            raise InvalidMessageIdError(
                f"{text!r:.80} is not a message id; the form is ledger:entry[:partition[:batch_index[:batch_size]]]",
                field="messageId",
            )
        ledger_id, entry_id, partition, batch_index, batch_size = numbers + [-1, -1, 0][len(numbers) - 2 :]
        return MessageId(ledger_id, entry_id, partition, batch_index, batch_size, topic)

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        if self.batch_index >= 0:
            text += f":{self.batch_index}:{self.batch_size}" if self.batch_size > 0 else f":{self.batch_index}"
        return text if self.first_chunk is None else f"{self.begin};{text}"


class _Draft:
    """A message id whose fields can still be assigned; it has the memory of one."""

    __slots__ = ("batch_index", "batch_size", "entry_id", "first_chunk", "ledger_id", "partition", "topic")


def received_id(
    ledger_id: int,
    entry_id: int,
    partition: int,
    batch_index: int,
    batch_size: int,
    topic: str,
    first_chunk: tuple[int, int] | None = None,
) -> MessageId:
    """Return the message id of a received message, in a seventh of the time of ``MessageId(...)``.

    The fields of a frozen dataclass are assigned by name through ``object``, which takes longer than all else that is
    done for a message of a batch. So they are assigned to an object of the same layout, which then becomes a MessageId.
    """
    draft: Any = _Draft()
    draft.ledger_id = ledger_id
    draft.entry_id = entry_id
    draft.partition = partition
    draft.batch_index = batch_index
    draft.batch_size = batch_size
    draft.topic = topic
    draft.first_chunk = first_chunk
    draft.__class__ = MessageId
    return draft  # type: ignore[no-any-return]  # a cast would be a call


MessageId.EARLIEST = MessageId(-1, -1)
MessageId.LATEST = MessageId(_I64_MAX, _I64_MAX)


_WORD_BITS = 64
_WORD_MASK = (1 << _WORD_BITS) - 1


def bits_of(words: Sequence[int]) -> int:
    """Return an ack set as one number; bit i is set while message i is not acknowledged."""
    if len(words) == 1:  # of almost every batch
        return words[0] & _WORD_MASK
    unsigned = [word & _WORD_MASK for word in words]
    return int.from_bytes(struct.pack(f"<{len(unsigned)}Q", *unsigned), "little")


def words_of(bits: int) -> list[int]:
    """Return the words of an ack set, as the signed 64-bit numbers that the wire has."""
    count = -(-bits.bit_length() // _WORD_BITS)
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * _WORD_BITS // 8, "little")))
