"""Redis: streams, XADD and XRANGE."""

from __future__ import annotations

import re

from typing_extensions import override

from tools.laboratory.foreign.protocols.connection import Answered, Publisher, Reader

RANGE_ENTRIES = 1_000  # of one XRANGE, 1 MB of these messages
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n([0-9-]+)\r\n\*2\r\n\$1\r\nv\r\n\$(\d+)\r\n")
_COUNT = re.compile(rb"\*(\d+)\r\n")


def command(*words: bytes) -> bytes:
    """Return a request."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class RedisPublisher(Publisher):
    """Adds to a stream."""

    @override
    def greet(self) -> None:
        self.ready.set_result(None)

    @override
    def send(self, payload: bytes, answered: Answered, number: int) -> None:
        self.expect(answered, number)
        self.write(command(b"XADD", self.stream.encode(), b"*", b"v", payload))

    @override
    def parse(self) -> None:
        *lines, rest = bytes(self._buffer).split(b"\r\n")
        if any(line.startswith(b"-") for line in lines):
            raise RuntimeError(f"Redis answers {lines[0]!r}")
        whole = len(lines) // 2  # the length of an id, and the id
        self._buffer = bytearray(b"\r\n".join([*lines[2 * whole :], rest]))
        for _ in range(whole):
            self.acknowledge()


class RedisReader(Reader):
    """Reads a stream by ranges, each after the last entry of the one before."""

    def __init__(self, stream: str, wanted: int) -> None:
        super().__init__(stream, wanted)
        self._left = 0  # entries of the answer under way
        self._last = b"-"

    @override
    def greet(self) -> None:
        self.begin()
        self._ask()

    @override
    def parse(self) -> None:
        buffer, at = self._buffer, 0
        while True:
            if not self._left:
                found = _COUNT.match(buffer, at)
                if found is None:
                    break
                at, self._left = found.end(), int(found[1])
                if not self._left:
                    raise RuntimeError(f"the stream ends after {self.run.messages} messages")
            entry = _ENTRY.match(buffer, at)
            if entry is None or len(buffer) < entry.end() + (size := int(entry[2])) + 2:
                break
            value = bytes(buffer[entry.end() : entry.end() + size])
            at = entry.end() + size + 2
            self._left -= 1
            if not self._left:
                self._last = b"(" + entry[1]
                self._ask()
            self.note(1, len(value))
        if at:
            del buffer[:at]
        elif buffer.startswith(b"-"):
            raise RuntimeError(f"Redis answers {bytes(buffer[:200])!r}")

    def _ask(self) -> None:
        if not self.ended.done() and self.run.messages < self._wanted:
            words = (self.stream.encode(), self._last, b"+", b"COUNT", b"%d" % RANGE_ENTRIES)
            self.write(command(b"XRANGE", *words))
