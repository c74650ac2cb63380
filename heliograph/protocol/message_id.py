"""Message ids: where a message lies, as numbers, bytes, base64 and text."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import ClassVar

from google.protobuf.message import DecodeError

from heliograph.errors import InvalidMessageIdError
from heliograph.protocol.pulsar_pb2 import MessageIdData

_U64 = 1 << 64
_I64_MAX = (1 << 63) - 1
_BYTES_MAX = 64 << 10  # of a serialized id; ids with a chunk or an ack set stay far below


def to_signed(value: int) -> int:
    """An unsigned 64-bit number of the wire as the signed one it stands for; 2^64-1 is -1."""
    return value - _U64 if value > _I64_MAX else value


def to_unsigned(value: int) -> int:
    """A signed number as the wire's unsigned 64-bit one."""
    return value & (_U64 - 1)


@dataclass(frozen=True, slots=True, order=True)
class MessageId:
    """The place of a message in its topic. Ids of one topic order as its messages do.

    Attributes:
        ledger_id, entry_id: the entry; -1 in both stands for the start of a topic.
        partition: -1 when the topic is not partitioned.
        batch_index: place within the entry's batch, -1 when the entry is a single message.
        batch_size: messages in that batch, 0 when unknown or no batch. Not compared.
        topic: the full name of the topic where that is known. Not compared and not part of the bytes.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = field(default=0, compare=False)
    topic: str = field(default="", compare=False)

    EARLIEST: ClassVar[MessageId]
    LATEST: ClassVar[MessageId]

    def to_data(self) -> MessageIdData:
        """This id as it travels inside commands."""
        data = MessageIdData(ledger_id=to_unsigned(self.ledger_id), entry_id=to_unsigned(self.entry_id))
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
            if self.batch_size > 0:
                data.batch_size = self.batch_size
        return data

    @staticmethod
    def from_data(data: MessageIdData, topic: str = "") -> MessageId:
        """The id that a command carries."""
        return MessageId(
            to_signed(data.ledger_id),
            to_signed(data.entry_id),
            data.partition,
            data.batch_index,
            data.batch_size,
            topic,
        )

    def to_bytes(self) -> bytes:
        """The bytes that Pulsar's clients call a serialized message id."""
        return self.to_data().SerializeToString()

    @staticmethod
    def from_bytes(data: bytes, topic: str = "") -> MessageId:
        """The id in ``data``.

        Raises:
            InvalidMessageIdError: these bytes are no message id.
        """
        if len(data) > _BYTES_MAX:
            raise InvalidMessageIdError("the message id is too long", field="messageId", limit=f"{_BYTES_MAX} bytes")
        try:
            parsed = MessageIdData.FromString(data)
        except DecodeError as error:
            raise InvalidMessageIdError("the bytes are no message id", field="messageId") from error
        if not parsed.IsInitialized():  # decoding lets missing fields pass
            raise InvalidMessageIdError("the message id lacks its ledger or entry", field="messageId")
        return MessageId.from_data(parsed, topic)

    def to_base64(self) -> str:
        """The form of the WebSocket and REST interfaces."""
        return base64.b64encode(self.to_bytes()).decode()

    @staticmethod
    def from_base64(text: str, topic: str = "") -> MessageId:
        """The id in ``text``.

        Raises:
            InvalidMessageIdError: not base64, or not a message id inside.
        """
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidMessageIdError(f"{text!r:.80} is not base64", field="messageId") from error
        return MessageId.from_bytes(data, topic)

    @staticmethod
    def parse(text: str, topic: str = "") -> MessageId:
        """The id in ``ledger:entry[:partition[:batch_index]]``, ``earliest`` or ``latest``; the reverse of ``str``.

        Raises:
            InvalidMessageIdError: another form, or a part that is no number.
        """
        if text in ("earliest", "latest"):
            return MessageId.EARLIEST if text == "earliest" else MessageId.LATEST
        parts = text.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if not 2 <= len(numbers) <= 4 or not all(-1 <= number <= _I64_MAX for number in numbers):
            raise InvalidMessageIdError(
                f"{text!r:.80} is no message id; the form is ledger:entry[:partition[:batch_index]]", field="messageId"
            )
        ledger_id, entry_id, partition, batch_index = numbers + [-1] * (4 - len(numbers))
        return MessageId(ledger_id, entry_id, partition, batch_index, topic=topic)

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return f"{text}:{self.batch_index}" if self.batch_index >= 0 else text


MessageId.EARLIEST = MessageId(-1, -1)
MessageId.LATEST = MessageId(_I64_MAX, _I64_MAX)
