"""A bookie in memory behind a real socket: the wire protocol and the rules of fencing, without disks.

For tests of clients of bookies. It can be told to stall, to refuse, to damage what it sends, and to forget.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgpack

from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_request, encode_answer, encode_batch
from heliograph.actors.wire.messages import (
    LIST_RUNS_MAX,
    PROTOCOL_VERSION,
    Answer,
    BookieOp,
    BookieRequest,
    Flag,
    Status,
)
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.paths import bookie_available
from heliograph.metadata.store import MetadataStore


@dataclass
class FakeLedger:
    """What the bookie holds of one ledger."""

    entries: dict[int, bytes] = field(default_factory=dict)
    last_add_confirmed: int = -1
    is_fenced: bool = False


class FakeBookie:
    """Serves until ``stop``; ``ledgers`` survives a stop and a new ``start``."""

    def __init__(self, bookie_id: str, store: MetadataStore, rack: str = "default", free_bytes: int = 1 << 30) -> None:
        self.bookie_id = bookie_id
        self.rack = rack
        self.free_bytes = free_bytes
        self.ledgers: dict[int, FakeLedger] = {}
        self.stalled_ops: set[BookieOp] = set()  # requests that get no answer
        self.held_ops: set[BookieOp] = set()  # requests that wait for ``release``
        self.refusals: dict[BookieOp, Status] = {}
        self.damaged_entries: set[int] = set()  # sent with a flipped bit
        self.list_runs_max = LIST_RUNS_MAX
        self.requests: list[BookieRequest] = []
        self._store = store
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._held: list[tuple[asyncio.StreamWriter, BookieRequest, bytes]] = []
        self.address = ""

    async def start(self) -> None:
        """Listen on a free port and register."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        registration = BookieRegistration(self.bookie_id, self.address, rack=self.rack, free_bytes=self.free_bytes)
        await self._store.create(bookie_available(self.bookie_id), encode(registration), ephemeral=True, parents=True)

    def release(self) -> None:
        """Do and answer what was held, and hold nothing from now on."""
        self.held_ops.clear()
        held, self._held = self._held, []
        for writer, request, body in held:
            writer.write(encode_answer(*self._answer(request, body)))

    async def kill(self) -> None:
        """End every connection and listen no more; the registration stays, as after a SIGKILL."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def stop(self) -> None:
        """``kill``, and be registered no more."""
        await self.kill()
        if await self._store.exists(bookie_available(self.bookie_id)) is not None:
            await self._store.delete(bookie_available(self.bookie_id))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        decoder = BookieFrameDecoder()
        try:
            while data := await reader.read(1 << 16):
                for header, body in decoder.feed(data):
                    request = decode_request(header)
                    self.requests.append(request)
                    if request.op in self.held_ops:
                        self._held.append((writer, request, bytes(body)))
                    elif request.op not in self.stalled_ops:
                        answer, answer_body = self._answer(request, bytes(body))
                        writer.write(encode_answer(answer, answer_body))
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, request: BookieRequest, body: bytes) -> tuple[Answer, bytes]:
        number = request.request_id
        if request.op in self.refusals:
            return Answer(number, self.refusals[request.op]), b""
        if request.op is BookieOp.HELLO:
            known = request.ledger_id == PROTOCOL_VERSION
            return Answer(number, Status.OK if known else Status.BAD_VERSION, text=self.bookie_id), b""
        if request.op is BookieOp.ADD:
            return self._add(request, body), b""
        if request.flags & Flag.FENCE:
            self.ledgers.setdefault(request.ledger_id, FakeLedger()).is_fenced = True  # I4
        ledger = self.ledgers.get(request.ledger_id)
        if ledger is None:
            return Answer(number, Status.NO_LEDGER), b""
        status, answer_body = self._read(request, ledger)
        return Answer(number, status, ledger.last_add_confirmed), answer_body

    def _add(self, request: BookieRequest, body: bytes) -> Answer:
        entry = decode_entry(body)
        ledger = self.ledgers.setdefault(request.ledger_id, FakeLedger())
        if ledger.is_fenced and not request.flags & Flag.RECOVERY:
            return Answer(request.request_id, Status.FENCED)
        ledger.entries[entry.entry_id] = body
        self.damaged_entries.discard(entry.entry_id)
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, entry.last_add_confirmed)
        return Answer(request.request_id, Status.OK)

    def _read(self, request: BookieRequest, ledger: FakeLedger) -> tuple[Status, bytes]:
        if request.op is BookieOp.READ:
            body = self._copy(ledger, request.entry_id)
            return (Status.OK, body) if body else (Status.NO_ENTRY, b"")
        if request.op is BookieOp.READ_BATCH:
            return self._read_batch(request, ledger)
        if request.op is BookieOp.READ_LAC:
            return Status.OK, self._copy(ledger, max(ledger.entries, default=-1))
        if request.op is BookieOp.WRITE_LAC:
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, request.entry_id)
            return Status.OK, b""
        if request.op is BookieOp.LIST_ENTRIES:
            stored = [entry_id for entry_id in sorted(ledger.entries) if entry_id >= request.entry_id]
            packed: bytes = msgpack.packb([[entry_id, entry_id] for entry_id in stored[: self.list_runs_max]])
            return Status.OK, packed
        return Status.BAD_REQUEST, b""

    def _read_batch(self, request: BookieRequest, ledger: FakeLedger) -> tuple[Status, bytes]:
        entries: list[Any] = []
        size = 0
        for entry_id in range(request.entry_id, request.last_entry_id + 1):
            copy = self._copy(ledger, entry_id)
            if not copy or (entries and size + len(copy) > request.limit):
                break
            entries.append(copy)
            size += len(copy)
        return (Status.OK, encode_batch(entries)) if entries else (Status.NO_ENTRY, b"")

    def _copy(self, ledger: FakeLedger, entry_id: int) -> bytes:
        copy = ledger.entries.get(entry_id, b"")
        if copy and entry_id in self.damaged_entries:
            return copy[:-1] + bytes([copy[-1] ^ 1])
        return copy
