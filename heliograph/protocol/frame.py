"""The frames of Pulsar's binary protocol (docs/formats-pulsar.md).

    simple frame   u32 length of what follows | u32 length of the command | command
    payload frame  the same, followed by a payload section up to the end of the frame

A payload section is an entry (see ``entry.py``), optionally preceded by broker metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from google.protobuf.message import DecodeError, EncodeError

from heliograph.base.errors import BadRequestError, ProtocolError
from heliograph.protocol.entry import BROKER_METADATA_MAGIC, broker_metadata_size
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.texts import fault_of_texts, holds_texts

PROTOCOL_VERSION = 20  # the newest version whose commands pulsar.proto has
MESSAGE_BYTES_MAX = 5 << 20  # default limit of one entry's payload
FRAME_SLACK_BYTES = 10 << 10  # command and metadata on top of the payload
SMALL_PIECE_BYTES = 4 << 10  # pieces below it are collected in one: as an object, each would cost 200 bytes more

_HEAD = struct.Struct(">II")
_U32 = struct.Struct(">I")
_BROKER_MAGIC = BROKER_METADATA_MAGIC.to_bytes(2, "big")
_CONNECT = BaseCommand.CONNECT
_WITH_TEXTS = {
    field.number: field.name
    for field in BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and holds_texts(field.message_type)
}  # the field of each type of command that can hold a text
# protobuf reads any buffer; its stubs only allow bytes
_parse: Callable[[memoryview], BaseCommand] = BaseCommand.FromString  # type: ignore[assignment]


def encode_command(command: BaseCommand, section_bytes: int = 0) -> bytes:
    """Encode a simple frame, or a payload frame up to its payload section.

    Args:
        section_bytes: of the payload section, which must be written next.

    Raises:
        BadRequestError: a required field of the command is not set.
    """
    try:
        body = command.SerializeToString()
    except EncodeError as error:
        raise BadRequestError(f"the command lacks a required field: {error}", field="command") from error
    return _HEAD.pack(4 + len(body) + section_bytes, len(body)) + body


def encode_payload_frame(command: BaseCommand, section: bytes | memoryview) -> bytes:
    """Encode a payload frame. ``section`` is an entry."""
    return b"".join((encode_command(command, len(section)), section))


class PulsarFrameDecoder:
    """Splits a byte stream into commands.

    Only a frame that spans several pieces of the stream is copied, once, and its small pieces twice. The returned
    payload sections are views of the copy or of a piece, and keep it alive.

    Args:
        frame_bytes_max: the largest frame, without its length field. A larger one is refused as soon as its length
            is known, so that the buffer never holds more than one such frame and one read. # I15
        keeps_broker_metadata: whether entries keep the block that a broker puts in front. A broker does not: it trusts
            no client with its own metadata.

    Attributes:
        buffered: the bytes of a frame that is not complete yet. They take twice their memory at most. # I15
    """

    def __init__(
        self, frame_bytes_max: int = MESSAGE_BYTES_MAX + FRAME_SLACK_BYTES, *, keeps_broker_metadata: bool = False
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._keeps_broker_metadata = keeps_broker_metadata
        self._pieces: list[bytes | bytearray | memoryview] = []
        self.buffered = 0
        self._needed = 4
        self._broken: ProtocolError | None = None

    @property
    def missing(self) -> int:
        """The bytes that the frame lacks; those of its length if that is not known yet."""
        return self._needed - self.buffered

    def clear(self) -> None:
        """Free the received part of a frame. The stream cannot be decoded any further."""
        self._broken = ProtocolError("the rest of the stream is not read")
        self._pieces, self.buffered = [], 0

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[BaseCommand, memoryview | None]]:
        """Return the commands that ``data`` completes, each with its payload section or None.

        Raises:
            ProtocolError: a frame is above the limit, its lengths contradict each other, or its command cannot be
                read. The stream cannot be decoded any further; each later call raises the same error.
        """
        if self._broken is not None:
            raise self._broken
        rest = memoryview(data if type(data) is bytes else bytes(data))
        size = len(rest)
        frames: list[tuple[BaseCommand, memoryview | None]] = []
        try:
            if 8 <= size <= self.frame_bytes_max and not self._pieces and _U32.unpack_from(rest)[0] == size - 4:
                return [self._read_frame(rest, 4, size)]  # most reads bring one whole frame
            while self._pieces:  # twice at most: for the length of a frame, and for the frame itself
                missing = self._needed - self.buffered
                self._keep(rest[:missing])
                if self.buffered < self._needed:
                    return frames
                rest = rest[missing:]
                frames += self._cut(memoryview(b"".join(self._pieces)))
            return frames + self._cut(rest) if rest else frames
        except ProtocolError as error:
            self._broken = error
            self._pieces, self.buffered = [], 0
            raise

    def _cut(self, view: memoryview) -> list[tuple[BaseCommand, memoryview | None]]:
        size, start, needed = len(view), 0, 4
        frames = []
        while size - start >= 4:
            (length,) = _U32.unpack_from(view, start)
            if not 4 <= length <= self.frame_bytes_max:
                raise ProtocolError(
                    f"a frame of {length} bytes is outside 4..{self.frame_bytes_max}",
                    field="frame",
                    limit=f"{self.frame_bytes_max} bytes",
                )
            end = start + 4 + length
            if end > size:
                needed = 4 + length
                break
            frames.append(self._read_frame(view, start + 4, end))
            start = end
        self._pieces, self.buffered, self._needed = [], 0, needed
        if start < size:
            rest = view[start:]
            self._keep(rest if len(rest) >= start else memoryview(bytes(rest)))  # a view keeps all that came with it
        return frames

    def _keep(self, piece: memoryview) -> None:
        self.buffered += len(piece)
        if len(piece) >= SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and type(self._pieces[-1]) is bytearray:
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _read_frame(self, view: memoryview, start: int, end: int) -> tuple[BaseCommand, memoryview | None]:
        (length,) = _U32.unpack_from(view, start)
        start += 4
        section_start = start + length
        if section_start > end:
            raise ProtocolError(
                f"a command of {length} bytes does not fit its frame of {end - start + 4}", field="frame"
            )
        try:
            command = _parse(view[start:section_start])
        except DecodeError as error:
            raise ProtocolError(f"a command cannot be read: {error}", field="command") from error
        kind = command.type
        if kind == _CONNECT and not command.HasField("type"):
            # protobuf leaves the type out if pulsar.proto does not have it
            raise ProtocolError("a command is of an unknown type", field="command")
        name = _WITH_TEXTS.get(kind)
        if name is not None and (fault := fault_of_texts(getattr(command, name))):
            raise ProtocolError(f"a command has a text that is not UTF-8: {name}.{fault}", field="command")
        if section_start == end:
            return command, None
        section = view[section_start:end]
        if not self._keeps_broker_metadata:
            while section[:2] == _BROKER_MAGIC and (size := broker_metadata_size(section)):
                section = section[size:]
        return command, section
