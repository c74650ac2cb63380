"""A small client of the bookie protocol for tests, and a bookie process that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_answer, encode_request
from heliograph.actors.wire.greeting import ClientGreeting
from heliograph.actors.wire.messages import PROTOCOL_VERSION, Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.actors.wire.ranges import OutgoingEntry, decode_run, encode_adds, is_run
from heliograph.metadata.session.renewing import Connect, RenewingStore


class BookiePeer(asyncio.Protocol):
    """One connection; every call gives a future of (answer, body), which fails when the connection is lost."""

    def __init__(self) -> None:
        self._decoder = BookieFrameDecoder()
        self._waiting: dict[int, asyncio.Future[tuple[Answer, bytes]]] = {}
        self._last_id = 0
        self._range: list[tuple[bytes, asyncio.Future[tuple[Answer, bytes]]]] = []
        self.transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str, secret: str | None = None) -> BookiePeer:
        host, port = address.rsplit(":", 1)
        _, peer = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        greeting = None if secret is None else ClientGreeting(secret)
        answer, body = await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=greeting.hello if greeting else b"")
        if greeting is not None and answer.status is Status.CHALLENGE:
            answer, _ = await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=greeting.prove(bytes(body), answer.text))
        assert answer.status is Status.OK
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the bookie went away"))
                future.exception()  # a test may have stopped caring
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        for header, body in self._decoder.feed(data):
            if is_run(header):
                first, last = decode_run(header)
                answers = [Answer(request_id, Status.OK) for request_id in range(first, last + 1)]
            else:
                answers = [decode_answer(header)]
            for answer in answers:
                future = self._waiting.pop(answer.request_id, None)
                if future is not None and not future.done():
                    future.set_result((answer, bytes(body)))

    def call(
        self,
        op: BookieOp,
        ledger_id: int = -1,
        entry_id: int = -1,
        *,
        flags: Flag = Flag.NONE,
        limit: int = 0,
        last_entry_id: int = -1,
        body: bytes = b"",
    ) -> asyncio.Future[tuple[Answer, bytes]]:
        future: asyncio.Future[tuple[Answer, bytes]] = asyncio.get_running_loop().create_future()
        if self.transport is None or self.transport.is_closing():
            future.set_exception(ConnectionResetError("not connected"))
            return future
        self._last_id += 1
        self._waiting[self._last_id] = future
        request = BookieRequest(op, self._last_id, ledger_id, entry_id, flags, limit, last_entry_id)
        self.transport.write(encode_request(request, body))
        return future

    def add(
        self, ledger_id: int, entry_id: int, payload: bytes, *, lac: int | None = None, flags: Flag = Flag.NONE
    ) -> asyncio.Future[tuple[Answer, bytes]]:
        data = entry_bytes(ledger_id, entry_id, payload, lac=lac)
        return self.call(BookieOp.ADD, ledger_id, entry_id, flags=flags, body=data)

    def add_in_range(self, ledger_id: int, entry_id: int, payload: bytes) -> asyncio.Future[tuple[Answer, bytes]]:
        """Add an entry in one frame with the others of this turn of the event loop."""
        future: asyncio.Future[tuple[Answer, bytes]] = asyncio.get_running_loop().create_future()
        packed = OutgoingEntry(ledger_id, entry_id, entry_bytes(ledger_id, entry_id, payload), b"").in_range()
        assert packed is not None, "it fits a range"
        if not self._range:
            asyncio.get_running_loop().call_soon(self._send_range)
        self._range.append((packed, future))
        return future

    def _send_range(self) -> None:
        entries, self._range = self._range, []
        if self.transport is None or self.transport.is_closing():
            for _, future in entries:
                future.set_exception(ConnectionResetError("not connected"))
            return
        first = self._last_id + 1
        for _, future in entries:
            self._last_id += 1
            self._waiting[self._last_id] = future
        self.transport.write(encode_adds(first, [packed for packed, _ in entries]))

    async def status(self, op: BookieOp, ledger_id: int, entry_id: int = -1, *, flags: Flag = Flag.NONE) -> Status:
        answer, _ = await self.call(op, ledger_id, entry_id, flags=flags)
        return answer.status

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def entry_bytes(ledger_id: int, entry_id: int, payload: bytes, *, lac: int | None = None) -> bytes:
    return encode_entry(ledger_id, entry_id, entry_id - 1 if lac is None else lac, len(payload), payload)


def small_config(home: Path, **changes: Any) -> BookieConfig:
    """A bookie on one folder whose files are small, so that rotation and recycling happen soon."""
    settings: dict[str, Any] = {
        "bookie_id": "b1",
        "journal_directories": (home / "journal",),
        "data_directories": (home / "data",),
        "journal_file_bytes": 64 << 10,
        "journal_seal_ms": 3_600_000,
        "entry_log_bytes": 64 << 10,
        "flush_interval_ms": 3_600_000,
        "gc_interval_ms": 3_600_000,
        "limbo_interval_ms": 3_600_000,
        **changes,
    }
    return BookieConfig(**settings)


@asynccontextmanager
async def serving(
    config: BookieConfig, store: Any = None, *, reopen: Connect | None = None, **arguments: Any
) -> AsyncIterator[tuple[Bookie, BookiePeer]]:
    """A started bookie in this process, with a connection to it. ``reopen`` opens sessions that follow the first."""
    bookie = Bookie(config, store if reopen is None else RenewingStore(store, reopen), **arguments)
    await bookie.start()
    try:
        peer = await BookiePeer.connect(bookie.address)
        try:
            yield bookie, peer
        finally:
            peer.close()
    finally:
        await bookie.stop()


class BookieProcess:
    """A bookie in a process of its own, on a folder that outlives it."""

    def __init__(self, home: Path, journal_file_bytes: int = 1 << 20, directories: int = 1) -> None:
        """
        Args:
            directories: of each kind.
        """
        self._arguments = [
            sys.executable,
            "-m",
            "tests.cluster.support.bookie_peer",
            str(home),
            str(journal_file_bytes),
            str(directories),
        ]
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        self.start_without_waiting()
        assert self._process is not None
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the bookie did not start"

    def start_without_waiting(self) -> None:
        root = Path(__file__).resolve().parents[3]
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, text=True, cwd=root)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        assert self._end(signal.SIGTERM) == 0, "an orderly end"

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        os.kill(process.pid, number)
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(120)


async def _serve(home: Path, journal_file_bytes: int, directories: int) -> None:
    numbers = [""] if directories == 1 else list(map(str, range(directories)))
    config = small_config(
        home,
        journal_directories=tuple(home / f"journal{number}" for number in numbers),
        data_directories=tuple(home / f"data{number}" for number in numbers),
        journal_file_bytes=journal_file_bytes,
        entry_log_bytes=4 << 20,
        flush_interval_ms=50,
        write_cache_bytes=24 << 20,
        single_write_bytes=2_000,  # some checkpoints copy all entries, and others keep the larger ones in the journal
        journal_seal_ms=5,
    )
    bookie = Bookie(config, None, on_failure=lambda error: os._exit(74))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await bookie.start()
    print(bookie.address, flush=True)
    await stopped.wait()
    await bookie.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
