"""The loads on one bookie, over the connection class that brokers use.

As a program, ``python -m tests.bench.bookie.load <address> <ledger> <last entry> <seconds>``, it reads a ledger in
batches again and again, one request after the other, and prints what it got as JSON: the catch-up reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import uvloop

from heliograph.actors.errors import BookieError, BookieUnavailableError
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.entry import decode_entry, encode_entry_head
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bookie.host import BOOKIE_ID
from tests.bench.pump import Pump

TIMEOUT_MS = 20_000
READ_BYTES = 1 << 20  # of one batch read
_LENGTH_BYTES = 4


def now_ms() -> int:
    """Return the time of the clock of deadlines, in milliseconds."""
    return int(time.monotonic() * 1000)


@contextlib.contextmanager
def connected(address: str) -> Iterator[BookieConnection]:
    """Open a connection for the duration of the block. The deadlines of its requests are not enforced."""
    connection = BookieConnection(BOOKIE_ID, address, now_ms)
    try:
        yield connection
    finally:
        connection.close()


class AddLoad:
    """A load of adds to one ledger, in order of entry ids."""

    def __init__(self, connection: BookieConnection, ledger_id: int, size: int) -> None:
        self.ledger_id = ledger_id
        self.next_entry_id = 0
        self._connection = connection
        self._payload = bytes(range(256)) * (size // 256)

    async def run(self, window: int, seconds: float, count: int = 1 << 62) -> MeasuredRun:
        """Add for a time, or a number of entries, with at most ``window`` unanswered adds."""
        pump = Pump(self._send, window, len(self._payload), first=self.next_entry_id)
        self._pump = pump
        run = await pump.run(seconds, count)
        self.next_entry_id = pump.next
        return run

    def _send(self, entry_id: int) -> None:
        size = len(self._payload)
        head = encode_entry_head(self.ledger_id, entry_id, entry_id - 1, (entry_id + 1) * size, self._payload)
        self._connection.send(
            BookieOp.ADD,
            self.ledger_id,
            entry_id,
            Flag.NONE,
            0,
            -1,
            head,
            self._answered,
            entry_id,
            now_ms() + TIMEOUT_MS,
            self._payload,
        )

    def _answered(self, entry_id: int, answer: Answer | BookieError, body: memoryview) -> None:
        if isinstance(answer, Answer) and answer.status is Status.OK:
            self._pump.answered(entry_id)
        else:
            self._pump.failed(answer if isinstance(answer, BookieError) else BookieUnavailableError(str(answer)))


async def ask(connection: BookieConnection, request: BookieRequest) -> bytes:
    """Return the body of one answer.

    Raises:
        BookieError: the request failed.
    """
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answered(context: object, answer: Answer | BookieError, body: memoryview) -> None:
        if isinstance(answer, Answer) and answer.status is Status.OK:
            done.set_result(bytes(body))
        else:
            done.set_exception(answer if isinstance(answer, BookieError) else BookieUnavailableError(str(answer)))

    connection.request(request, b"", answered, None, TIMEOUT_MS)
    return await done


async def statistics(connection: BookieConnection) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(await ask(connection, BookieRequest(BookieOp.STATISTICS, 0)))
    return found


async def catch_up(address: str, ledger_id: int, last_entry_id: int, seconds: float) -> MeasuredRun:
    """Read the ledger from its first entry, repeatedly, and check every entry."""
    run = MeasuredRun()
    begun = time.perf_counter()
    with connected(address) as connection:
        entry_id = 0
        while time.perf_counter() - begun < seconds:
            request = BookieRequest(
                BookieOp.READ_BATCH, 0, ledger_id, entry_id, limit=READ_BYTES, last_entry_id=last_entry_id
            )
            body = memoryview(await ask(connection, request))
            offset = 0
            while offset < len(body):
                end = offset + _LENGTH_BYTES + int.from_bytes(body[offset : offset + _LENGTH_BYTES])
                run.bytes += len(decode_entry(body[offset + _LENGTH_BYTES : end]).payload)
                run.messages += 1
                entry_id += 1
                offset = end
            if entry_id > last_entry_id:
                entry_id = 0
        run.seconds = time.perf_counter() - begun
    return run


def main(address: str, ledger_id: str, last_entry_id: str, seconds: str) -> None:
    """Run the reader in this process."""
    run = uvloop.run(catch_up(address, int(ledger_id), int(last_entry_id), float(seconds)))
    print(json.dumps({"mb_per_s": run.bytes / run.seconds / 1e6, "entries_per_s": run.messages / run.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
