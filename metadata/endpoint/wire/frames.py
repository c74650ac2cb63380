"""Splits a client's byte stream into frames; a stream may begin with a four-letter word instead. No I/O.

A frame is a length (int32, big endian) and that many bytes. A four-letter word, read as a length, is far above the
limit, which distinguishes the two.
"""

from __future__ import annotations

from heliograph.metadata.endpoint.limits import FRAME_BYTES_MAX, GREETING_BYTES_MAX
from heliograph.metadata.errors import MetadataProtocolError

FOUR_LETTER_WORDS = frozenset(
    {
        b"conf", b"cons", b"crst", b"dirs", b"dump", b"envi", b"gtmk", b"hash", b"isro", b"mntr", b"orst", b"ruok",
        b"srst", b"srvr", b"stat", b"stmk", b"wchc", b"wchp", b"wchs",
    }
)  # fmt: skip
_LENGTH_BYTES = 4


class FrameCutter:
    """The incoming bytes of one connection. ``word`` is set when the first four of them are a known word."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False
        self._limit = GREETING_BYTES_MAX  # of the next frame; clients send requests at once after their first frame
        self._wanted = _LENGTH_BYTES  # bytes, from the begin of the buffer
        self.word: bytes | None = None

    @property
    def buffered(self) -> int:
        """The number of buffered bytes of the incomplete frame."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """The number of bytes that the incomplete frame is known to lack."""
        return self._wanted - len(self._buffer)

    def clear(self) -> None:
        """Free the buffered bytes. The stream cannot be read any further."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that ``data`` completes; none once ``word`` is set.

        Raises:
            MetadataProtocolError: the length of a frame is illegal; the rest of the stream is unreadable.
        """
        if self.word is not None:
            return []
        buffer = self._buffer
        buffer += data
        if not self._begun and len(buffer) >= _LENGTH_BYTES:
            self._begun = True
            if bytes(buffer[:_LENGTH_BYTES]) in FOUR_LETTER_WORDS:
                self.word = bytes(buffer[:_LENGTH_BYTES])
                buffer.clear()
                return []
        frames: list[bytes] = []
        start, self._wanted = 0, _LENGTH_BYTES
        while len(buffer) - start >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], signed=True)
            if not 0 <= length <= self._limit:
                raise MetadataProtocolError(f"a frame of {length} bytes is not within 0 and {self._limit}")
            end = start + _LENGTH_BYTES + length
            if len(buffer) < end:
                self._wanted = end - start
                break
            self._limit = FRAME_BYTES_MAX
            frames.append(bytes(buffer[start + _LENGTH_BYTES : end]))
            start = end
        del buffer[:start]
        return frames
