"""Bodies of answers in the pieces that they lie in memory in, and memory that entry logs are read into.

A large body is handed to its socket in small parts, so that neither the event loop nor the interpreter is held by one
long copy, and adds of other clients are answered in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from actors.bookie.blocks import BlockBuffer, own_memory, up_to_block

PART_BYTES = 64 << 10  # of a body that goes to the socket at once
READ_BUFFER_BYTES = (1 << 20) + (64 << 10)  # of lent memory; what does not fit gets memory of its own


class Body:
    """``pieces`` one behind the other. They may be lent: ``release`` gives them back."""

    __slots__ = ("_release", "pieces", "size")

    def __init__(self, pieces: Sequence[bytes | memoryview], release: Callable[[], None] | None = None) -> None:
        self.pieces = pieces
        self.size = sum([len(piece) for piece in pieces])
        self._release = release

    def parts(self, skip: int = 0) -> Iterator[bytes]:
        """Copies of the pieces, without the first ``skip`` bytes, in parts of PART_BYTES, the last one shorter."""
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
        """The pieces are needed until ``user`` is done, and not any more then."""
        release, self._release = self._release, None
        if release is not None:
            user.add_done_callback(lambda _: release())

    def release(self) -> None:
        """The pieces are not needed any more. Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()


NO_BODY = Body(())


class ReadBuffer:
    """Memory for one read, used again and again."""

    def __init__(self) -> None:
        self._memory = memoryview(BlockBuffer(READ_BUFFER_BYTES).memory)
        self._used = 0

    def take(self, size: int) -> memoryview:
        """``size`` bytes on a block boundary that nobody else has until ``reset``."""
        start, end = self._used, self._used + size
        if end > len(self._memory):
            return own_memory(size)
        self._used = up_to_block(end)
        return self._memory[start:end]

    def reset(self) -> None:
        """All that was taken is given back."""
        self._used = 0
