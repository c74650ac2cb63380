"""Payloads of answers, kept in the pieces that were read, and reusable memory that entry logs are read into.

A large payload goes to its socket in small parts, so that no long copy holds the event loop or the interpreter lock,
and adds of other clients are answered in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from heliograph.actors.bookie.disk.blocks import BlockBuffer, own_memory, up_to_block

PART_BYTES = 64 << 10  # written to the socket at once
READ_BUFFER_BYTES = (1 << 20) + (64 << 10)  # reusable memory of one reader; larger reads get memory of their own


class EntryPayload:
    """The concatenation of ``pieces``. Their memory may be borrowed; ``release`` returns it."""

    __slots__ = ("_release", "pieces", "size")

    def __init__(self, pieces: Sequence[bytes | memoryview], release: Callable[[], None] | None = None) -> None:
        self.pieces = pieces
        self.size = sum([len(piece) for piece in pieces])
        self._release = release

    def parts(self, skip: int = 0) -> Iterator[bytes]:
        """Copy the payload without its first ``skip`` bytes, in parts of PART_BYTES; the last part may be shorter."""
        part: list[bytes | memoryview] = []
        size = 0
        for piece in self.pieces:
            view = memoryview(piece)[skip:]
            skip -= len(piece) - len(view)
            while size + len(view) >= PART_BYTES:
                cut = PART_BYTES - size
                yield b"".join([*part, view[:cut]])
                part, size, view = [], 0, view[cut:]
            if view:
                part.append(view)
                size += len(view)
        if part:
            yield b"".join(part)

    def release_after(self, user: asyncio.Future[Any]) -> None:
        """Release the pieces when ``user`` is done."""
        release, self._release = self._release, None
        if release is not None:
            user.add_done_callback(lambda _: release())

    def release(self) -> None:
        """Return the memory of the pieces. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


NO_BODY = EntryPayload(())


class ReadBuffer:
    """Memory for one read at a time, used again for the next."""

    def __init__(self) -> None:
        self._memory = memoryview(BlockBuffer(READ_BUFFER_BYTES).memory)
        self._used = 0

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes on a block boundary, for the caller alone until ``reset``."""
        start, end = self._used, self._used + size
        if end > len(self._memory):
            return own_memory(size)
        self._used = up_to_block(end)
        return self._memory[start:end]

    def reset(self) -> None:
        """Take back all memory that was given out."""
        self._used = 0
