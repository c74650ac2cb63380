"""What one client can make a bookie hold is bounded, and other clients do not notice it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import (
    CONNECTION_ADDS_BYTES_MAX,
    CONNECTION_BODIES_MAX,
    CONNECTION_OUT_BYTES_MAX,
    ENTRY_BYTES_MAX,
    RECEIVE_LARGE_BYTES,
)
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.server import connection as connection_module
from heliograph.actors.bookie.server import reads as reads_module
from heliograph.actors.bookie.server.connection import BookieClientConnection
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.waits import until

PAYLOAD = bytes(500_000)
BATCH_BYTES = 4 << 20
DEADLINE_SECONDS = 60.0


class StuckDisk(RealDisk):
    """A disk whose syncs wait for ``goes``."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()
        self.goes.set()

    def raw_sync(self, fd: int, path: Path) -> None:
        self.goes.wait(DEADLINE_SECONDS)
        super().raw_sync(fd, path)

    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        written = self.raw_write(fd, path, data, offset)
        self.raw_sync(fd, path)
        return written


def only_connection(bookie: Bookie) -> BookieClientConnection:
    assert bookie._running is not None
    (connection,) = bookie._running.server._connections
    return connection


def unsent(connection: BookieClientConnection) -> int:
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


@pytest.mark.parametrize("is_flushed", [False, True], ids=["cached", "on disk"])
@pytest.mark.parametrize("op", [BookieOp.READ, BookieOp.READ_BATCH, BookieOp.READ_LAC])
async def test_answers_that_nobody_takes_are_bounded(tmp_path: Path, op: BookieOp, is_flushed: bool) -> None:  # I15
    bound = CONNECTION_OUT_BYTES_MAX + (CONNECTION_BODIES_MAX + 1) * ENTRY_BYTES_MAX
    async with serving(small_config(tmp_path, read_cache_bytes=0)) as (bookie, peer):
        for number in range(12):
            assert (await peer.add(5, number, PAYLOAD))[0].status is Status.OK
        if is_flushed:
            await bookie.checkpoint()
        connection = only_connection(bookie)
        assert peer.transport is not None
        peer.transport.pause_reading()
        answers = [peer.call(op, 5, 0, limit=BATCH_BYTES) for _ in range(80)]  # 40 or 320 MB
        other = await BookiePeer.connect(bookie.address)
        for number in range(100):
            assert (await other.add(6, number, b"x"))[0].status is Status.OK
            assert unsent(connection) <= bound
        peer.transport.resume_reading()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert {answer.status for answer, _ in await asyncio.gather(*answers)} == {Status.OK}
        other.close()


async def test_a_client_that_takes_nothing_for_long_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "SLOW_CLIENT_SECONDS_MAX", 0.1)
    async with serving(small_config(tmp_path)) as (bookie, peer):
        for number in range(12):
            await peer.add(5, number, PAYLOAD)
        slow = await BookiePeer.connect(bookie.address)
        assert slow.transport is not None
        slow.transport.pause_reading()
        for _ in range(100):
            slow.call(BookieOp.READ_BATCH, 5, 0, limit=BATCH_BYTES)
        await until(lambda: bookie.statistics()["connections"] == 1)
        assert await peer.status(BookieOp.READ, 5, 1) is Status.OK
        slow.close()


async def test_adds_that_wait_for_the_disk_are_bounded_and_all_answered(tmp_path: Path) -> None:  # I15
    disk = StuckDisk()
    config = small_config(tmp_path, journal_file_bytes=64 << 20, write_cache_bytes=256 << 20)
    async with serving(config, disk=disk) as (bookie, peer):
        connection = only_connection(bookie)
        disk.goes.clear()
        adds = [peer.add(5, number, PAYLOAD) for number in range(80)]  # 40 MB
        highest = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            highest = max(highest, connection._add_bytes)
        assert 0 < highest <= CONNECTION_ADDS_BYTES_MAX + ENTRY_BYTES_MAX + RECEIVE_LARGE_BYTES
        assert not any(add.done() for add in adds), "nothing is acknowledged before its sync"  # I1
        disk.goes.set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}


async def test_adds_are_refused_while_the_queue_of_their_journal_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # I15
    monkeypatch.setattr(connection_module, "JOURNAL_QUEUE_BYTES_MAX", len(PAYLOAD) - 1)
    disk = StuckDisk()
    config = small_config(tmp_path, journal_file_bytes=64 << 20, write_cache_bytes=256 << 20)
    async with serving(config, disk=disk) as (_, peer):
        disk.goes.clear()
        adds = [peer.add(5, number, PAYLOAD) for number in range(2)]
        while not adds[-1].done() and len(adds) < 20:  # until one is answered while the disk stands still
            adds.append(peer.add(5, len(adds), PAYLOAD))
            await asyncio.sleep(0.05)
        *taken, refused = adds
        is_refused = refused.done()
        disk.goes.set()
        assert is_refused
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await refused)[0].status is Status.TOO_MANY_REQUESTS
            assert {answer.status for answer, _ in await asyncio.gather(*taken)} <= {
                Status.OK,
                Status.TOO_MANY_REQUESTS,
            }
            assert (await taken[0])[0].status is Status.OK
            assert (await peer.add(5, len(adds), PAYLOAD))[0].status is Status.OK, "and there is room again"


async def test_reads_that_wait_for_the_disk_are_bounded_and_adds_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # I15
    goes = threading.Event()
    real = BookieStorage.read_disk

    def slow(storage: BookieStorage, ledger_id: int, entry_id: int, bytes_wanted: int) -> list[tuple[int, bytes]]:
        goes.wait(DEADLINE_SECONDS)
        return real(storage, ledger_id, entry_id, bytes_wanted)

    monkeypatch.setattr(reads_module, "DISK_READS_MAX", 3)
    monkeypatch.setattr(BookieStorage, "read_disk", slow)
    async with serving(small_config(tmp_path, read_cache_bytes=0)) as (bookie, peer):
        assert (await peer.add(5, 0, b"x"))[0].status is Status.OK
        await bookie.checkpoint()
        reads = [peer.call(BookieOp.READ, 5, 0) for _ in range(10)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            await until(lambda: sum(read.done() for read in reads) >= 7)
            assert (await peer.add(5, 1, b"x"))[0].status is Status.OK
            goes.set()
            statuses = [answer.status for answer, _ in await asyncio.gather(*reads)]
        assert sorted(statuses) == sorted([Status.OK] * 3 + [Status.TOO_MANY_REQUESTS] * 7)
        assert await peer.status(BookieOp.READ, 5, 0) is Status.OK, "and there is room again"


async def test_copies_of_repair_wait_for_a_flush_before_clients_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = threading.Event()
    goes.set()  # the start flushes, too
    real = BookieStorage.flush_checkpoint

    def flush(self: BookieStorage, *arguments: Any, **options: Any) -> int:
        goes.wait(DEADLINE_SECONDS)
        return real(self, *arguments, **options)

    monkeypatch.setattr(BookieStorage, "flush_checkpoint", flush)
    config = small_config(tmp_path, journal_file_bytes=64 << 20, write_cache_bytes=32 << 20)
    async with serving(config) as (bookie, client):
        goes.clear()
        repair = await BookiePeer.connect(bookie.address)
        copies = [repair.add(7, number, PAYLOAD, flags=Flag.RECOVERY) for number in range(100)]  # 50 MB
        async with asyncio.timeout(DEADLINE_SECONDS):
            running = bookie._running
            assert running is not None
            await until(lambda: running.server.delays_copies)
            for number in range(5):
                assert (await client.add(5, number, PAYLOAD))[0].status is Status.OK
            assert not running.server.is_crowded
            assert not all(copy.done() for copy in copies), "no flush has ended"
            goes.set()
            assert {answer.status for answer, _ in await asyncio.gather(*copies)} == {Status.OK}
        repair.close()


async def test_a_bookie_at_rest_frees_the_memory_that_large_entries_came_in(tmp_path: Path) -> None:  # I15
    config = small_config(tmp_path, flush_interval_ms=20, journal_file_bytes=1 << 20)
    async with serving(config) as (bookie, peer):
        assert bookie._running is not None
        memory = bookie._running.server.receive_memory
        highest = 0
        for start in range(0, 40, 20):
            adds = [peer.add(5, number, bytes(200_000)) for number in range(start, start + 20)]
            assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
            highest = max(highest, memory.slabs)
        assert highest > 1
        await until(lambda: memory.slabs <= 1)


async def test_a_random_read_takes_one_entry_from_the_disk_and_reads_in_order_many(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path, read_cache_bytes=10 << 20)) as (bookie, peer):
        for number in range(400):
            assert (await peer.add(5, number, bytes(1_000)))[0].status is Status.OK
        await bookie.checkpoint()
        assert bookie._opened is not None
        cache = bookie._opened.storage.read_cache
        for number in (390, 330, 10, 250, 90):
            assert await peer.status(BookieOp.READ, 5, number) is Status.OK
        assert bookie.statistics()["disk_reads"] == 5
        assert cache.size_bytes < 5 * 2_000
        for number in range(100, 200):
            assert await peer.status(BookieOp.READ, 5, number) is Status.OK
        assert int(str(bookie.statistics()["disk_reads"])) <= 5 + 6
