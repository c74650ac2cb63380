"""What a bookie does for many requests at once: receipts in runs, LACs of one frame, batches in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.actors.bookie.config import BODIES_MAX, CONNECTION_BODIES_MAX, KEPT_BODY_BYTES_LEAST, BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.journal import JournalPorts
from heliograph.actors.bookie.recovery.opening import open_storage, start_journals
from heliograph.actors.bookie.server.connection import BookieClientConnection
from heliograph.actors.bookie.server.in_process import InProcessReads
from heliograph.actors.bookie.store.payloads import EntryPayload
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieError, BookieStorageError
from heliograph.actors.wire import in_process
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_answer
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.actors.wire.ranges import decode_run, is_run
from tests.unit.bookie.test_receiving import Sockets
from tests.waits import many_turns

ADDRESS = "127.0.0.1:1"
MANY_BYTES = 1 << 40


class Peer:
    """A connection without a socket: what it writes is kept."""

    def __init__(self) -> None:
        self.refusals = 0
        self.written = bytearray()
        self.connection = object.__new__(BookieClientConnection)
        cache = SimpleNamespace(note_refusal=self._note_refusal, room_bytes=1, calm_room_bytes=0)
        transport = SimpleNamespace(write=self.written.extend)
        fields = {
            "_storage": SimpleNamespace(write_cache=cache),
            "_transport": transport,
            "_add_bytes": MANY_BYTES,
            "_adds_answered": None,
            "_held": None,
            "is_reading": True,
            "is_held_back": False,
        }
        for name, value in fields.items():
            setattr(self.connection, name, value)

    def _note_refusal(self) -> None:
        self.refusals += 1

    def answers(self) -> list[tuple[int, int, Status]]:
        """Return first and last request id of each answer, and its status."""
        found = []
        for header, _ in BookieFrameDecoder().feed(bytes(self.written)):
            answer = None if is_run(header) else decode_answer(header)
            first, last = decode_run(header) if answer is None else (answer.request_id, answer.request_id)
            found.append((first, last, Status.OK if answer is None else answer.status))
        return sorted(found)


@pytest.mark.parametrize("count", [1, 3])
def test_adds_that_a_journal_refused_are_refused_each(count: int) -> None:  # I1
    peer = Peer()
    tokens = [(request_id, 10, True) for request_id in range(5, 5 + count)]
    peer.connection.on_durable(list(tokens), BookieStorageError("no space for another file"))
    assert peer.answers() == [(n, n, Status.STORAGE_ERROR) for n in range(5, 5 + count)]
    assert peer.refusals == 1, "the cache knows that a crash loses them"


def test_adds_that_are_durable_are_answered_once_each() -> None:
    peer = Peer()
    peer.connection.on_durable([(1, 10, False), (7, 10, True), (8, 10, True), (2, 10, False)], None)
    assert peer.answers() == [(1, 1, Status.OK), (2, 2, Status.OK), (7, 8, Status.OK)]
    assert peer.refusals == 0


# Small frames


@pytest.mark.parametrize("size", [4, 1_000, KEPT_BODY_BYTES_LEAST - 4])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_small_bodies_outlive_the_next_read(size: int, count: int) -> None:
    sockets = Sockets(2)
    for _ in range(3):
        for socket in (0, 1):
            for _ in range(count):
                sockets.send(socket, size)
            while sockets.unread[socket]:
                sockets.read(socket, 1 << 20)
    assert len(sockets.held) == 6 * count
    sockets.check()


# LACs of one frame


def with_storage(home: Path, scenario: Callable[[BookieStorage], Any]) -> None:
    """Open a storage, let the scenario use it on an event loop, and drop what is in memory."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        config = BookieConfig("b1", (home / "journal",), (home / "data",), journal_file_bytes=16 << 10)
        for directory in (home / "journal", home / "data"):
            directory.mkdir(parents=True, exist_ok=True)
        disk, failures = RealDisk(), list[BaseException]()

        def post(call: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(call)

        opened = open_storage(disk, config)
        start_journals(disk, opened, JournalPorts(post, failures.append))
        try:
            await scenario(opened.storage)
            for journal in opened.storage.journals:
                await asyncio.wait_for(journal.caught_up(), 60)
        finally:
            await loop.run_in_executor(None, opened.storage.close)
        assert failures == []

    asyncio.run(play())


def test_lacs_of_one_frame_are_durable(tmp_path: Path) -> None:  # I2
    lacs = {ledger_id: 10 + ledger_id for ledger_id in range(1, 40)}

    async def tell(storage: BookieStorage) -> None:
        storage.take_lacs(lacs.items())

    async def compare(storage: BookieStorage) -> None:
        assert {ledger_id: storage.last_add_confirmed(ledger_id) for ledger_id in lacs} == lacs

    with_storage(tmp_path, tell)
    with_storage(tmp_path, compare)


def test_a_lac_of_a_frame_changes_no_fenced_ledger(tmp_path: Path) -> None:  # I4
    async def scenario(storage: BookieStorage) -> None:
        await storage.fence(2)
        storage.take_lacs([(1, 7), (2, 7), (3, 7)])
        assert [storage.last_add_confirmed(ledger_id) for ledger_id in (1, 2, 3)] == [7, -1, 7]

    with_storage(tmp_path, scenario)


# Batches in one process


def test_a_batch_outlives_the_memory_that_it_was_read_into() -> None:
    memory = bytearray(b"first second")
    released = []

    def release() -> None:
        released.append(True)
        memory[:] = b"x" * len(memory)  # the next read

    async def answer(request: BookieRequest) -> tuple[Answer, EntryPayload]:
        pieces = [memoryview(memory)[:5]] if request.limit == 1 else [memoryview(memory)[:5], memoryview(memory)[5:]]
        return Answer(request.request_id, Status.OK), EntryPayload(pieces, release)

    async def read(limit: int) -> bytes:
        memory[:] = b"first second"
        told = asyncio.get_running_loop().create_future()

        def on_batch(found: Answer | BookieError, body: memoryview) -> None:
            told.set_result(body)

        reads = InProcessReads(cast(Any, answer), lambda error: None)
        reads.read(BookieRequest(BookieOp.READ_BATCH, 1, 1, 0, limit=limit, last_entry_id=5), on_batch)
        return bytes(await told)

    assert asyncio.run(read(1)) == b"first"
    assert asyncio.run(read(2)) == b"first second"
    assert len(released) == 2


async def test_only_who_knows_the_secret_reads_past_the_socket() -> None:  # I17
    in_process.offer(ADDRESS, "secret", lambda request, on_batch: None)
    assert in_process.reads_at(ADDRESS, "secret") is not None
    for wrong in (None, "", "other"):
        assert in_process.reads_at(ADDRESS, wrong) is None
    in_process.withdraw(ADDRESS)
    assert in_process.reads_at(ADDRESS, "secret") is None


# Bodies


class Bodies:
    """Connections of one bookie whose answers have bodies, and how many of these are there at once."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.gate = asyncio.Event()
        self.server = SimpleNamespace(answer=self._answer, bodies=asyncio.Semaphore(BODIES_MAX))

    async def _answer(self, request: BookieRequest) -> Any:
        self.open += 1
        self.most = max(self.most, self.open)
        await self.gate.wait()
        return Answer(request.request_id, Status.OK), SimpleNamespace(release=self._release)

    def _release(self) -> None:
        self.open -= 1

    def connection(self) -> BookieClientConnection:
        made = object.__new__(BookieClientConnection)
        made._server = cast(Any, self.server)
        made._bodies, made._writable = asyncio.Semaphore(CONNECTION_BODIES_MAX), asyncio.Event()
        return made


async def test_the_entries_that_are_read_and_not_sent_have_a_bound_over_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # I15
    async def send(connection: BookieClientConnection, answer: Answer, body: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(BookieClientConnection, "_send_in_parts", send)
    bodies = Bodies()
    connections = [bodies.connection() for _ in range(BODIES_MAX)]
    reads = [
        asyncio.create_task(connection._serve(BookieRequest(BookieOp.READ, number, 1, 0)))
        for connection in connections
        for number in range(1, 2 * CONNECTION_BODIES_MAX)
    ]
    await many_turns()
    assert bodies.most == 0, "no client takes its answers"
    for connection in connections[:2]:
        connection._writable.set()
    await many_turns()
    assert bodies.most == 2 * CONNECTION_BODIES_MAX
    for connection in connections:
        connection._writable.set()
    await many_turns()
    assert bodies.most == BODIES_MAX
    bodies.gate.set()
    await asyncio.gather(*reads)
    assert (bodies.open, bodies.most) == (0, BODIES_MAX)


async def test_a_cached_entry_waits_while_the_client_takes_no_answers() -> None:  # I15
    connection = Bodies().connection()
    connection._held, connection._transport = None, cast(Any, object())
    assert not connection._may_answer_at_once()
    connection._writable.set()
    assert connection._may_answer_at_once()
